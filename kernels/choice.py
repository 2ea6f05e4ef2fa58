"""Which kernels a run uses: plain PyTorch operations, or Triton's where they can run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dllmx.errors import ConfigError
from dllmx.kernels import language
from dllmx.kernels.attention_drift import scored_drift_torch, scored_drift_triton
from dllmx.kernels.confidence import (
    Confidence,
    confidence_torch,
    confidence_triton,
    probability_of_torch,
    probability_of_triton,
)
from dllmx.kernels.proxy_drift import ProxyDrift, refresh_proxies_torch, refresh_proxies_triton
from dllmx.kernels.residual_quant import (
    Quantised,
    dequantise_torch,
    dequantise_triton,
    quantise_torch,
    quantise_triton,
)
from dllmx.kernels.row_attention import (
    RowAttention,
    mix_kernel,
    row_attention_torch,
    row_attention_triton,
)
from dllmx.kernels.spherical_kmeans import (
    Clusters,
    batched_kmeans_torch,
    batched_kmeans_triton,
)

NAMES = ("torch", "triton", "auto")


@dataclass(frozen=True, slots=True)
class Kernels:
    """The shared operations of a run; what each takes and gives is said at its ``*_torch`` twin.

    ``name``: "torch" or "triton". ``overwrites_logits``: ``confidence`` and ``probability_of`` use
    the logits they are given as scratch space. ``reads_all_dtypes``: they take the logits in the
    dtype of the model; else in float32.
    """

    name: str
    overwrites_logits: bool
    reads_all_dtypes: bool
    confidence: Callable[..., Confidence]
    probability_of: Callable[..., Tensor]
    row_attention: Callable[..., RowAttention]
    scored_drift: Callable[..., Tensor]
    refresh_proxies: Callable[..., ProxyDrift]
    batched_kmeans: Callable[..., Clusters]
    quantise: Callable[[Tensor, str], Quantised]
    dequantise: Callable[[Quantised], Tensor]


TORCH = Kernels(
    name="torch",
    overwrites_logits=True,
    reads_all_dtypes=False,
    confidence=confidence_torch,
    probability_of=probability_of_torch,
    row_attention=row_attention_torch,
    scored_drift=scored_drift_torch,
    refresh_proxies=refresh_proxies_torch,
    batched_kmeans=batched_kmeans_torch,
    quantise=quantise_torch,
    dequantise=dequantise_torch,
)
TRITON = Kernels(
    name="triton",
    overwrites_logits=False,
    reads_all_dtypes=True,
    confidence=confidence_triton,
    probability_of=probability_of_triton,
    row_attention=row_attention_triton,
    scored_drift=scored_drift_triton,
    refresh_proxies=refresh_proxies_triton,
    batched_kmeans=batched_kmeans_triton,
    quantise=quantise_triton,
    dequantise=dequantise_triton,
)


def attention_with_read_outs(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    visible: Tensor | None = None,
    read: tuple[str, ...] = (),
) -> RowAttention:
    """PyTorch's own attention where nothing is read out of it, which it does not offer."""
    attention = row_attention_triton if read else row_attention_torch
    return attention(q, keys, values, visible, read)


CHOICES = {
    ("torch", "sdpa"): TORCH,
    ("torch", "triton"): replace(TORCH, row_attention=row_attention_triton),
    ("triton", "sdpa"): replace(TRITON, row_attention=attention_with_read_outs),
    ("triton", "triton"): TRITON,
}
"""By hardware.kernels and hardware.attention."""


def choose(name: str, device: torch.device, attention: str = "sdpa") -> Kernels:
    """The kernels ``name`` for tensors on ``device``; "auto" is triton on CUDA, else torch.

    ``attention``: "sdpa" is PyTorch's own, with read-outs as ``name`` says; "triton" its kernel.
    Raises ConfigError where Triton's cannot run: without the package, or on CPU tensors without
    its interpreter. Nothing is replaced silently.
    """
    if name not in NAMES:
        raise ConfigError(f"hardware.kernels={name} does not exist. Type torch, triton or auto.")
    decided = name
    if name == "auto":
        decided = "torch" if device.type == "cpu" else "triton"
    if decided == "triton":
        _check_it_runs(f"hardware.kernels={name}", "hardware.kernels=torch", device)
    if attention == "triton":
        _check_it_runs("hardware.attention=triton", "hardware.attention=sdpa", device)
    return CHOICES[decided, attention]


def _check_it_runs(setting: str, instead: str, device: torch.device) -> None:
    if not language.HAS_TRITON:
        raise ConfigError(
            f"{setting} needs the package triton, which is not installed. "
            f"Type pip install triton, or {instead}."
        )
    if device.type == "cpu" and not interpreted():
        raise ConfigError(
            f"{setting} runs on a GPU, not on hardware.device=cpu. Type {instead}, or for a slow "
            "check start the command with TRITON_INTERPRET=1."
        )


def interpreted() -> bool:
    """Whether kernels were made for Triton's interpreter, which works on CPU tensors.

    The variable TRITON_INTERPRET decides that when triton and the kernels are imported, so that
    both are looked at: a change made later makes a mix that cannot run.
    """
    made: tuple[Any, ...] = (mix_kernel, language.tl.max)
    return language.HAS_TRITON and not any(
        isinstance(function, language.triton.runtime.JITFunction) for function in made
    )
