"""Every Triton kernel at the sizes of LLaDA-8B: its inputs, and what it must move and compute.

A case names the function in ``kernels/<file>.py`` whose twins end in ``_torch`` and ``_triton``.
Bytes: each input read once, each output written once. Operations: products and sums of matrix
products; where a kernel has none that count, its bytes are its only limit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Sizes:
    """``rows``: of a block; ``keys``: all positions; ``window``: positions clustered by Polestar,
    ``clusters`` their number; ``packet``: rows that a refresh adds to the block.
    """

    width: int = 4096
    heads: int = 32
    kv_heads: int = 32
    size: int = 128
    vocab: int = 126464
    layers: int = 32
    keys: int = 1280
    rows: int = 32
    window: int = 96
    clusters: int = 8
    packet: int = 48


SMALL = Sizes(
    width=64, heads=4, kv_heads=2, size=16, vocab=500, layers=2,
    keys=40, rows=8, window=12, clusters=3, packet=4,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Inputs:
    """Makes the tensors of a case: the same for the same seed."""

    sizes: Sizes
    device: torch.device
    dtype: torch.dtype

    def normal(self, *shape: int, seed: int = 0, dtype: torch.dtype | None = None) -> Tensor:
        """Normal numbers in the case's dtype, or ``dtype``."""
        generator = torch.Generator(device=self.device).manual_seed(seed)
        drawn = torch.randn(shape, generator=generator, device=self.device)
        return drawn.to(dtype or self.dtype)

    def below(self, bound: int, *shape: int) -> Tensor:
        """Whole numbers in [0, bound)."""
        generator = torch.Generator(device=self.device).manual_seed(1)
        return torch.randint(0, bound, shape, generator=generator, device=self.device)

    def spread(self, count: int, among: int) -> Tensor:
        """``count`` sorted positions, evenly spread below ``among``."""
        places = torch.linspace(0, among - 1, count, device=self.device)
        return places.round().long()


@dataclass(frozen=True, slots=True)
class Case:
    """One call. ``arguments`` makes fresh ones: a twin may overwrite its inputs.

    ``tolerance``: largest error of the numbers, relative to the largest of the twin's;
    ``differing``: largest share of whole numbers (tokens, labels, codes) that may differ, since
    sums in another order can turn a near tie.
    """

    file: str
    function: str
    label: str
    arguments: Callable[[Inputs], dict[str, Any]]
    operations: Callable[[Sizes], float] = lambda sizes: 0.0
    tolerance: float = 2e-2
    differing: float = 0.0

    @property
    def name(self) -> str:
        """As tables show it."""
        return f"{self.function}, {self.label}" if self.label else self.function

    def twin(self, kind: str) -> Callable[..., Any] | None:
        """The function ending in ``kind`` ("torch" or "triton"); None where there is none."""
        module = import_module(f"dllmx.kernels.{self.file}")
        found: Callable[..., Any] | None = getattr(module, f"{self.function}_{kind}", None)
        return found


def _logits(inputs: Inputs, **options: Any) -> dict[str, Any]:
    sizes = inputs.sizes
    logits = inputs.normal(sizes.rows, sizes.vocab) * 4
    return {"logits": logits, "forbidden": sizes.vocab - 1, **options}


def _tokens(inputs: Inputs) -> dict[str, Any]:
    sizes = inputs.sizes
    logits = inputs.normal(sizes.rows, sizes.vocab)
    return {"logits": logits, "token": inputs.below(sizes.vocab, sizes.rows)}


def _attention(
    inputs: Inputs, rows: str, read: tuple[str, ...] = (), masked: bool = False
) -> dict[str, Any]:
    sizes = inputs.sizes
    stored = (1, sizes.kv_heads, sizes.keys, sizes.size)
    q = inputs.normal(1, sizes.heads, getattr(sizes, rows), sizes.size)
    visible = torch.ones(1, sizes.keys, dtype=torch.bool, device=inputs.device)
    visible[:, : sizes.keys // 8] = False
    return {
        "q": q,
        "keys": inputs.normal(*stored, seed=1),
        "values": inputs.normal(*stored, seed=2),
        "visible": visible if masked else None,
        "read": read,
    }


def _attention_operations(sizes: Sizes, rows: str) -> float:
    return 4.0 * getattr(sizes, rows) * sizes.keys * sizes.heads * sizes.size


def _vectors(inputs: Inputs) -> dict[str, Any]:
    sizes = inputs.sizes
    start = inputs.spread(sizes.clusters, sizes.window).expand(sizes.layers, -1).contiguous()
    vectors = inputs.normal(sizes.layers, sizes.window, sizes.width)
    return {"vectors": vectors, "start": start, "iterations": 5}


def _kmeans_operations(sizes: Sizes) -> float:
    return 5 * 4.0 * sizes.layers * sizes.window * sizes.width * sizes.clusters


CASES: tuple[Case, ...] = (
    Case("confidence", "confidence", "probability", _logits, tolerance=1e-4),
    Case(
        "confidence", "confidence", "entropy and margin",
        partial(_logits, with_entropy=True, with_margin=True), tolerance=1e-4,
    ),
    Case("confidence", "probability_of", "", _tokens, tolerance=1e-4),
    Case(
        "row_attention", "row_attention", "block",
        partial(_attention, rows="rows"), partial(_attention_operations, rows="rows"),
    ),
    Case(
        "row_attention", "row_attention", "block, log-sum-exp and head mean",
        partial(_attention, rows="rows", read=("log_sum_exp", "head_mean")),
        partial(_attention_operations, rows="rows"),
    ),
    Case(
        "row_attention", "row_attention", "all rows",
        partial(_attention, rows="keys"), partial(_attention_operations, rows="keys"),
    ),
    Case(
        "row_attention", "row_attention", "all rows, padded",
        partial(_attention, rows="keys", masked=True),
        partial(_attention_operations, rows="keys"),
    ),
    Case(
        "spherical_kmeans", "batched_kmeans", "all layers", _vectors, _kmeans_operations,
        differing=0.02,
    ),
)  # fmt: skip


def written_cases() -> list[Case]:
    """The cases whose kernel has a Triton version."""
    return [case for case in CASES if case.twin("triton") is not None]
