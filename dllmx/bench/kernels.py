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
    """One call. ``arguments`` makes fresh ones, in order: a twin may overwrite its inputs.

    ``tolerance``: largest error of the numbers, relative to the largest of the twin's;
    ``differing``: largest share of whole numbers (tokens, labels, codes) that may differ, since
    sums in another order can turn a near tie. ``overwritten``: how many of the arguments, the last
    ones, the call writes its result to.
    """

    file: str
    function: str
    label: str
    arguments: Callable[[Inputs], tuple[Any, ...]]
    operations: Callable[[Sizes], float] = lambda sizes: 0.0
    tolerance: float = 2e-2
    differing: float = 0.0
    overwritten: int = 0

    @property
    def name(self) -> str:
        """As tables show it."""
        return f"{self.function}, {self.label}" if self.label else self.function

    def outputs(self, result: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """What the call gave: its ``result`` and the ``arguments`` that it wrote to."""
        return (result, *arguments[len(arguments) - self.overwritten :])

    def twin(self, kind: str) -> Callable[..., Any] | None:
        """The function ending in ``kind`` ("torch" or "triton"); None where there is none."""
        module = import_module(f"dllmx.kernels.{self.file}")
        found: Callable[..., Any] | None = getattr(module, f"{self.function}_{kind}", None)
        return found


def _logits(inputs: Inputs, all_measures: bool) -> tuple[Any, ...]:
    sizes = inputs.sizes
    logits = inputs.normal(sizes.rows, sizes.vocab) * 4
    return logits, sizes.vocab - 1, all_measures, all_measures


def _tokens(inputs: Inputs) -> tuple[Any, ...]:
    sizes = inputs.sizes
    logits = inputs.normal(sizes.rows, sizes.vocab)
    return logits, inputs.below(sizes.vocab, sizes.rows)


def _attention(
    inputs: Inputs, rows: str, read: tuple[str, ...] = (), masked: bool = False
) -> tuple[Any, ...]:
    sizes = inputs.sizes
    stored = (1, sizes.kv_heads, sizes.keys, sizes.size)
    q = inputs.normal(1, sizes.heads, getattr(sizes, rows), sizes.size)
    visible = torch.ones(1, sizes.keys, dtype=torch.bool, device=inputs.device)
    visible[:, : sizes.keys // 8] = False
    keys, values = inputs.normal(*stored, seed=1), inputs.normal(*stored, seed=2)
    return q, keys, values, visible if masked else None, read


def _attention_operations(sizes: Sizes, rows: str) -> float:
    return 4.0 * getattr(sizes, rows) * sizes.keys * sizes.heads * sizes.size


def _scores(inputs: Inputs) -> tuple[Any, ...]:
    """The block's attention at two steps: queries, keys and the log-sum-exp of their scores."""
    sizes = inputs.sizes
    both: list[Tensor] = []
    for seed in (0, 2):
        q = inputs.normal(sizes.heads, sizes.rows, sizes.size, seed=seed)
        keys = inputs.normal(sizes.kv_heads, sizes.keys, sizes.size, seed=seed + 1)
        grouped = q.float().reshape(sizes.kv_heads, -1, sizes.size)
        scores = grouped @ keys.float().mT / sizes.size**0.5
        both += [q, keys, scores.logsumexp(-1).view(sizes.heads, sizes.rows)]
    return tuple(both)


def _scores_operations(sizes: Sizes) -> float:
    return 4.0 * sizes.heads * sizes.rows * sizes.keys * sizes.size


def _proxies(inputs: Inputs) -> tuple[Any, ...]:
    """A layer's centroids, norm and query projection, its keys, and the attention before."""
    sizes = inputs.sizes
    attention = sizes.heads * sizes.size
    centroids = inputs.normal(sizes.clusters, sizes.width)
    norm = torch.ones(sizes.width, device=inputs.device, dtype=inputs.dtype)
    weight = inputs.normal(attention, sizes.width, seed=1) / sizes.width**0.5
    keys = inputs.normal(sizes.kv_heads, sizes.keys, sizes.size, seed=2)
    before = inputs.normal(
        sizes.heads, sizes.clusters, sizes.keys, seed=3, dtype=torch.float32
    ).softmax(-1)
    return centroids, norm, 1e-5, weight, None, None, None, keys, before


def _proxy_operations(sizes: Sizes) -> float:
    attention = sizes.heads * sizes.size
    return 2.0 * sizes.clusters * attention * (sizes.width + sizes.keys)


def _states(inputs: Inputs, form: str) -> tuple[Any, ...]:
    return inputs.normal(inputs.sizes.window, inputs.sizes.width), form


def _stored(inputs: Inputs, form: str) -> tuple[Any, ...]:
    module = import_module("dllmx.kernels.residual_quant")
    return (module.quantise_torch(*_states(inputs, form)),)


def _stored_and_norm(inputs: Inputs, form: str) -> tuple[Any, ...]:
    """Kept states of a window, their centroids, and the norm that reads them."""
    norm = torch.ones(inputs.sizes.width, device=inputs.device, dtype=inputs.dtype)
    shape = inputs.sizes.window, inputs.sizes.width
    centroids = inputs.normal(*shape, seed=1, dtype=torch.float32)
    return *_stored(inputs, form), centroids, norm, 1e-5, inputs.dtype


def _patch(inputs: Inputs) -> tuple[Any, ...]:
    """A packet's layer inputs, norm and key/value projection, angles, and store of its rows."""
    sizes = inputs.sizes
    norm = torch.ones(sizes.width, device=inputs.device, dtype=inputs.dtype)
    outputs = 2 * sizes.kv_heads * sizes.size
    weight = inputs.normal(outputs, sizes.width, seed=1) / sizes.width**0.5
    angles = inputs.normal(sizes.packet, sizes.size, seed=2, dtype=torch.float32)
    rows = torch.arange(sizes.packet, device=inputs.device).flip(0)
    store = torch.zeros(
        2, sizes.kv_heads, sizes.packet, sizes.size, device=inputs.device, dtype=inputs.dtype
    )
    x = inputs.normal(sizes.packet, sizes.width)
    return x, norm, 1e-5, weight, None, angles.cos(), angles.sin(), rows, store[0], store[1]


def _patch_operations(sizes: Sizes) -> float:
    return 4.0 * sizes.packet * sizes.width * sizes.kv_heads * sizes.size


def _vectors(inputs: Inputs) -> tuple[Any, ...]:
    sizes = inputs.sizes
    start = inputs.spread(sizes.clusters, sizes.window).expand(sizes.layers, -1).contiguous()
    vectors = inputs.normal(sizes.layers, sizes.window, sizes.width)
    return vectors, start, 5


def _kmeans_operations(sizes: Sizes) -> float:
    return 5 * 4.0 * sizes.layers * sizes.window * sizes.width * sizes.clusters


CASES: tuple[Case, ...] = (
    Case(
        "confidence", "confidence", "probability",
        partial(_logits, all_measures=False), tolerance=1e-4,
    ),
    Case(
        "confidence", "confidence", "entropy and margin",
        partial(_logits, all_measures=True), tolerance=1e-4,
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
    Case("attention_drift", "scored_drift", "block", _scores, _scores_operations),
    Case("proxy_drift", "refresh_proxies", "one layer", _proxies, _proxy_operations),
    *(
        Case("residual_quant", "quantise", form, partial(_states, form=form), differing=1e-3)
        for form in ("nvfp4", "mxfp4", "int8", "fp8")
    ),
    *(
        Case("residual_quant", "dequantise", form, partial(_stored, form=form), tolerance=1e-6)
        for form in ("nvfp4", "mxfp4", "int8", "fp8")
    ),
    *(
        Case("residual_quant", "dequantise_normed", form, partial(_stored_and_norm, form=form))
        for form in ("nvfp4", "mxfp4", "int8", "fp8")
    ),
    Case("patch_rows", "patch_rows", "one layer", _patch, _patch_operations, overwritten=2),
)  # fmt: skip


def written_cases() -> list[Case]:
    """The cases whose kernel has a Triton version."""
    return [case for case in CASES if case.twin("triton") is not None]
