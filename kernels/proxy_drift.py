"""Proxy attention of cluster centroids and its drift (Polestar, arXiv 2607.14107, section 4.1).

One launch takes a layer's centroids through norm, query projection, rotation and attention over
every key. A program owns a head: it streams that head's part of the projection once, for all
centroids, and keeps their queries as two halves, because the rotation mixes these.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from dllmx.kernels.attention_tiles import load_tile
from dllmx.kernels.compiled import Variant
from dllmx.kernels.language import jit, next_power_of_2, tl
from dllmx.kernels.projection import projected, projected_torch, rotated, rotated_torch

TINY = 1e-12
SMALLEST_DOT = 16
COLUMNS = 128  # bytes of a centroid's channels at a time, 64 in 16 bits
KEYS = 64


class ProxyDrift(NamedTuple):
    """``drift`` [K] float32, None without an earlier attention; ``attention`` [H, K, T] float32."""

    drift: Tensor | None
    attention: Tensor


def proxy_attention_torch(queries: Tensor, keys: Tensor) -> Tensor:
    """Attention [H, K, T] float32 of centroid ``queries`` [H, K, h] over ``keys`` [G, T, h]."""
    heads, clusters, size = queries.shape
    grouped = queries.float().reshape(keys.shape[0], -1, size)
    scores = grouped @ keys.float().transpose(1, 2) / size**0.5
    return scores.softmax(-1).view(heads, clusters, -1)


def proxy_drift_torch(current: Tensor, previous: Tensor) -> Tensor:
    """KL(current || previous) [K] in nats, averaged over heads, of attention rows [H, K, T]."""
    ratio = (current + TINY).log() - (previous + TINY).log()
    return (current * ratio).sum(-1).clamp(min=0).mean(0)


def refresh_proxies_torch(
    centroids: Tensor,
    norm_weight: Tensor,
    eps: float,
    query_weight: Tensor,
    query_bias: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    keys: Tensor,
    previous: Tensor | None,
) -> ProxyDrift:
    """The centroids' attention, and how far it moved from ``previous`` [H, K, T] float32.

    ``centroids`` [K, D] stand for a layer's inputs and ``norm_weight`` [D] is its attention norm;
    ``query_weight`` [H*h, D] and ``query_bias`` [H*h] project to queries, in the centroids' dtype.
    These are rotated by ``cos`` and ``sin`` [K, h] (half-split layout) in their dtype, or not at
    all where these are None; so are the ``keys`` [G, T, h]. Heads that share keys follow one
    another.
    """
    size = keys.shape[-1]
    queries = projected_torch(centroids, norm_weight, eps, query_weight, query_bias, size)
    if cos is not None and sin is not None:
        queries = rotated_torch(queries, cos, sin)
    attention = proxy_attention_torch(queries, keys)
    return ProxyDrift(
        None if previous is None else proxy_drift_torch(attention, previous), attention
    )


@jit
def scores_of(  # type: ignore[no-untyped-def]
    first, second, keys, key, pair, key_row, length, scale,
    HALF: tl.constexpr, WIDEN: tl.constexpr, FLOOR: tl.constexpr,
):  # fmt: skip
    """Scores of the queries' two halves and the keys ``key``; FLOOR outside."""
    tile = load_tile(keys, key, pair, key_row, length, HALF, WIDEN)
    scores = tl.dot(first, tl.trans(tile), input_precision="tf32x3")
    tile = load_tile(keys + HALF, key, pair, key_row, length, HALF, WIDEN)
    scores = tl.dot(second, tl.trans(tile), scores, input_precision="tf32x3") * scale
    return tl.where((key < length)[None, :], scores, FLOOR)


@jit
def refresh_proxies_kernel(  # type: ignore[no-untyped-def]
    centroids, norm_weight, query_weight, query_bias, cos, sin, keys, previous, attention, drift,
    count, width, length, row_stride, weight_row, cos_row, sin_row, key_head, key_row, eps, scale,
    GROUP: tl.constexpr, HALF: tl.constexpr, BIAS: tl.constexpr, ROTATED: tl.constexpr,
    COMPARED: tl.constexpr, WIDEN: tl.constexpr, ROWS: tl.constexpr, PAIRS: tl.constexpr,
    COLUMNS: tl.constexpr, KEYS: tl.constexpr, TINY: tl.constexpr, FLOOR: tl.constexpr = -1.0e30,
):  # fmt: skip
    """One program a head: all its proxies. ``drift`` [H, K]; ``previous`` may be ``attention``."""
    head = tl.program_id(0).to(tl.int64)
    row, pair = tl.arange(0, ROWS), tl.arange(0, PAIRS)
    weights = query_weight + head * 2 * HALF * weight_row
    bias = query_bias
    if BIAS:
        bias += head * 2 * HALF
    first, second = projected(
        centroids, norm_weight, weights, bias, row, pair, count, width, row_stride, weight_row, eps,
        HALF, BIAS, WIDEN, ROWS, PAIRS, COLUMNS, "tf32x3",
    )  # fmt: skip
    kind: tl.constexpr = centroids.dtype.element_ty
    if ROTATED:
        inside = (row < count)[:, None] & (pair < HALF)[None, :]
        at_cos = cos + row[:, None] * cos_row + pair[None, :]
        at_sin = sin + row[:, None] * sin_row + pair[None, :]
        first, second = rotated(first, second, at_cos, at_sin, inside, HALF)
    first, second = first.to(kind), second.to(kind)
    if WIDEN:
        first, second = first.to(tl.float32), second.to(tl.float32)
    keys += (head // GROUP) * key_head
    top = tl.full([ROWS], FLOOR, tl.float32)
    mass = tl.zeros([ROWS], tl.float32)
    for start in range(0, length, KEYS):
        key = start + tl.arange(0, KEYS)
        scores = scores_of(
            first, second, keys, key, pair, key_row, length, scale, HALF, WIDEN, FLOOR
        )  # fmt: skip
        higher = tl.maximum(top, tl.max(scores, 1))
        mass = mass * tl.exp(top - higher) + tl.sum(tl.exp(scores - higher[:, None]), 1)
        top = higher
    total = tl.zeros([ROWS], tl.float32)
    for start in range(0, length, KEYS):
        key = start + tl.arange(0, KEYS)
        scores = scores_of(
            first, second, keys, key, pair, key_row, length, scale, HALF, WIDEN, FLOOR
        )  # fmt: skip
        weight = tl.exp(scores - top[:, None]) / mass[:, None]
        place = (head * count + row)[:, None] * length + key[None, :]
        inside = (row < count)[:, None] & (key < length)[None, :]
        if COMPARED:
            before = tl.load(previous + place, mask=inside, other=0.0)
            moved = weight * (tl.log(weight + TINY) - tl.log(before + TINY))
            total += tl.sum(moved, 1)  # outside, the weight is 0
        tl.store(attention + place, weight, mask=inside)
    if COMPARED:
        tl.store(drift + head * count + row, tl.maximum(total, 0.0), mask=row < count)


def refresh_proxies_triton(
    centroids: Tensor,
    norm_weight: Tensor,
    eps: float,
    query_weight: Tensor,
    query_bias: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    keys: Tensor,
    previous: Tensor | None,
) -> ProxyDrift:
    """``refresh_proxies_torch`` in one launch; any strides but the last of each tensor."""
    for tensor in (centroids, norm_weight, query_weight, cos, sin, keys):
        if tensor is not None and tensor.stride(-1) != 1:
            raise ValueError(f"strides {tensor.stride()}: need 1 in the last dimension")
    count, width = centroids.shape
    groups, length, size = keys.shape
    heads = query_weight.shape[0] // size
    attention = torch.empty(heads, count, length, device=keys.device)
    drift = None if previous is None else torch.empty(heads, count, device=keys.device)
    refresh_proxies_kernel[(heads,)](
        centroids, norm_weight, query_weight, query_bias, cos, sin, keys,
        None if previous is None else previous.contiguous(), attention, drift,
        count, width, length, centroids.stride(0), query_weight.stride(0),
        0 if cos is None else cos.stride(0), 0 if sin is None else sin.stride(0),
        *keys.stride()[:2], eps, 1 / size**0.5,
        BIAS=query_bias is not None, ROTATED=cos is not None, COMPARED=previous is not None,
        WIDEN=keys.device.type != "cuda",  # the interpreter multiplies bf16 as if it were integer
        **_constants(count, size, heads // groups, centroids.element_size()),
        num_warps=4, num_stages=3 if centroids.element_size() == 2 else 2,
    )  # fmt: skip
    return ProxyDrift(None if drift is None else drift.mean(0), attention)


def _constants(count: int, size: int, group: int, element: int) -> dict[str, Any]:
    return {
        "GROUP": group,
        "HALF": size // 2,
        "ROWS": max(next_power_of_2(count), SMALLEST_DOT),
        "PAIRS": max(next_power_of_2(size // 2), SMALLEST_DOT),
        "COLUMNS": COLUMNS // element,
        "KEYS": KEYS if element == 2 else KEYS // 2,
        "TINY": TINY,
    }


def _variant(name: str, group: int, angles: str | None, bias: bool, compared: bool) -> Variant:
    absent = {
        "query_bias": not bias, "cos": angles is None, "sin": angles is None,
        "previous": not compared, "drift": not compared,
    }  # fmt: skip
    pointers = {
        "centroids": "*bf16", "norm_weight": "*bf16", "query_weight": "*bf16",
        "query_bias": "*bf16", "cos": angles, "sin": angles, "keys": "*bf16",
        "previous": "*fp32", "attention": "*fp32", "drift": "*fp32",
    }  # fmt: skip
    strides = ("row_stride", "weight_row", "cos_row", "sin_row", "key_head", "key_row")
    fixed = {"BIAS": bias, "ROTATED": angles is not None, "COMPARED": compared, "WIDEN": False}
    fixed |= _constants(8, 128, group, 2) | {"FLOOR": -1.0e30}
    return Variant(
        name=f"proxy_drift, {name}",
        kernel=refresh_proxies_kernel,
        signature={
            **{key: "constexpr" if absent.get(key) else kind for key, kind in pointers.items()},
            **dict.fromkeys(("count", "width", "length", *strides), "i32"),
            "eps": "fp32", "scale": "fp32",
            **dict.fromkeys(fixed, "constexpr"),
        },
        constants=fixed | {key: None for key, missing in absent.items() if missing},
        registers=255,
        warps=4,
        stages=3,
        aligned=("width", *strides),
    )  # fmt: skip


VARIANTS: tuple[Variant, ...] = (
    _variant("LLaDA-8B", 1, None, bias=False, compared=True),
    _variant("LLaDA-8B, first attention", 1, None, bias=False, compared=False),
    _variant("Dream-7B, rotated", 7, "*bf16", bias=True, compared=True),
)
