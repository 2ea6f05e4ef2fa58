"""Seeded random weights of any shape, for speed work and shape tests without a checkpoint."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from dllmx.models.layout import empty_weights, named_views
from dllmx.models.model import ModelShape, Weights

STANDARD_DEVIATION = 0.02  # keeps the logits of any depth finite, in half precision too


def random_weights(
    shape: ModelShape, seed: int, dtype: torch.dtype, device: torch.device | str
) -> Weights:
    """Normal weights with standard deviation 0.02, norms of one, made on ``device`` in ``dtype``.

    Each tensor depends on ``seed``, its own name and its size alone: a model cut to fewer layers
    has the same first layers. Devices and dtypes draw different numbers.
    """
    weights = empty_weights(shape, dtype, device)
    for name, view in named_views(weights, shape).items():
        _fill(view, name, seed)
    return weights


def _fill(view: Tensor, name: str, seed: int) -> None:
    if view.dim() == 1 and name.endswith(".weight"):
        view.fill_(1.0)
        return
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator(device=view.device)
    generator.manual_seed(int.from_bytes(digest[:7], "big"))
    view.normal_(0.0, STANDARD_DEVIATION, generator=generator)
