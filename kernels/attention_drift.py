"""Token drift: how far a token's attention moved since an earlier step.

Polestar (arXiv 2607.14107), equation 4. Probabilities below TINY count as TINY, so that keys
without attention do not decide the divergence.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from dllmx.kernels.attention_tiles import (
    Tiles,
    constants,
    load_tile,
    processors,
    splits,
)
from dllmx.kernels.compiled import Variant
from dllmx.kernels.language import jit, next_power_of_2, tl

TINY = 1e-12
LEAST = math.log(TINY)


def attention_drift_torch(current: Tensor, previous: Tensor) -> Tensor:
    """KL(current || previous) [R] in nats, averaged over heads, of attention rows [H, R, T]."""
    p, q = current.clamp(min=TINY), previous.clamp(min=TINY)
    return (p * (p.log() - q.log())).sum(-1).clamp(min=0).mean(0)


def scored_drift_torch(
    q: Tensor,
    keys: Tensor,
    log_sum_exp: Tensor,
    previous_q: Tensor,
    previous_keys: Tensor,
    previous_log_sum_exp: Tensor,
) -> Tensor:
    """``attention_drift_torch`` [R] of two steps' scores, without their normalised attention.

    At either step ``q`` [H, R, h] are the rows' queries and ``keys`` [G, T, h] those of every
    position, both rotated; heads that share keys follow one another. ``log_sum_exp`` [H, R] float32
    is that of the rows' scores q k / sqrt(h), in nats.
    """
    current = _log_attention(q, keys, log_sum_exp)
    moved = current - _log_attention(previous_q, previous_keys, previous_log_sum_exp)
    return (current.exp_() * moved).sum(-1).clamp(min=0).mean(0)


def _log_attention(q: Tensor, keys: Tensor, log_sum_exp: Tensor) -> Tensor:
    heads, rows, size = q.shape
    grouped = q.float().reshape(keys.shape[0], -1, size)
    scores = (grouped @ keys.float().mT / size**0.5).view(heads, rows, -1)
    return (scores - log_sum_exp[..., None]).clamp_(min=LEAST)


@jit
def scored_drift_kernel(  # type: ignore[no-untyped-def]
    q, keys, log_sum_exp, previous_q, previous_keys, previous_log_sum_exp, drift,
    q_head, q_row, k_head, k_row, old_q_head, old_q_row, old_k_head, old_k_row,
    heads, rows, count, span, scale,
    LEAST: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, HEAD: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, VISIBLE: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """One program: the divergence of a tile of rows of one head over ``span`` of the keys.

    ``drift`` [S, H, R]: what each of the S splits of the keys adds.
    """
    head = tl.program_id(1)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, HEAD)
    group = (head // GROUP).to(tl.int64)
    keys += group * k_head
    previous_keys += group * old_k_head
    new = load_tile(q + head.to(tl.int64) * q_head, row, column, q_row, rows, SIZE, WIDEN)
    old = previous_q + head.to(tl.int64) * old_q_head
    old = load_tile(old, row, column, old_q_row, rows, SIZE, WIDEN)
    known = tl.load(log_sum_exp + head * rows + row, mask=row < rows, other=0.0)
    old_known = tl.load(previous_log_sum_exp + head * rows + row, mask=row < rows, other=0.0)
    total = tl.zeros([ROWS], tl.float32)
    first = tl.program_id(2) * span
    for start in range(first, tl.minimum(first + span, count), KEYS):
        key = start + tl.arange(0, KEYS)
        tile = load_tile(keys, key, column, k_row, count, SIZE, WIDEN)
        scores = tl.dot(new, tl.trans(tile), input_precision="tf32x3") * scale
        scores = tl.maximum(scores - known[:, None], LEAST)
        tile = load_tile(previous_keys, key, column, old_k_row, count, SIZE, WIDEN)
        before = tl.dot(old, tl.trans(tile), input_precision="tf32x3") * scale
        before = tl.maximum(before - old_known[:, None], LEAST)
        moved = tl.exp(scores) * (scores - before)
        total += tl.sum(tl.where((key < count)[None, :], moved, 0.0), 1)
    place = drift + (tl.program_id(2) * heads + head) * rows + row
    tl.store(place, total, mask=row < rows)


def scored_drift_triton(
    q: Tensor,
    keys: Tensor,
    log_sum_exp: Tensor,
    previous_q: Tensor,
    previous_keys: Tensor,
    previous_log_sum_exp: Tensor,
) -> Tensor:
    """``scored_drift_torch`` without either attention in memory; any strides but the last."""
    for tensor in (q, keys, previous_q, previous_keys):
        if tensor.stride(-1) != 1:
            raise ValueError(f"strides {tensor.stride()}: need 1 in the last dimension")
    heads, rows, size = q.shape
    count = keys.shape[1]
    tile = drift_tiles(rows, size, q.element_size())
    row_tiles = -(-rows // tile.rows)
    parts = splits(row_tiles * heads, count, tile.keys, processors(q.device))
    span = -(-count // (parts * tile.keys)) * tile.keys
    drift = torch.empty(parts, heads, rows, device=q.device)
    scored_drift_kernel[(row_tiles, heads, parts)](
        q, keys, log_sum_exp.contiguous(),
        previous_q, previous_keys, previous_log_sum_exp.contiguous(), drift,
        *q.stride()[:2], *keys.stride()[:2], *previous_q.stride()[:2], *previous_keys.stride()[:2],
        heads, rows, count, span, 1 / size**0.5,
        LEAST=LEAST, **constants(q[None], keys[None], None, tile),
    )  # fmt: skip
    return drift.sum(0).clamp_(min=0).mean(0)


def drift_tiles(rows: int, size: int, element: int) -> Tiles:
    """Tiles of ``rows`` with heads of ``size`` elements of ``element`` bytes: two of each load."""
    most = 32 if element == 2 and size <= 128 else 16
    at_once = min(max(next_power_of_2(rows), 16), most)
    return Tiles(at_once, 64 if element == 2 and size <= 128 else 32, 4, 2)


def _variant(rows: int, group: int, name: str) -> Variant:
    tile = drift_tiles(rows, 128, 2)
    strides = tuple(
        f"{step}{tensor}" for step in ("", "old_")
        for tensor in ("q_head", "q_row", "k_head", "k_row")
    )  # fmt: skip
    fixed: dict[str, Any] = {
        "LEAST": LEAST, "GROUP": group, "SIZE": 128, "HEAD": 128,
        "ROWS": tile.rows, "KEYS": tile.keys, "VISIBLE": 0, "WIDEN": False,
    }  # fmt: skip
    return Variant(
        name=f"attention_drift, {rows} rows of {name}",
        kernel=scored_drift_kernel,
        signature={
            "q": "*bf16", "keys": "*bf16", "log_sum_exp": "*fp32",
            "previous_q": "*bf16", "previous_keys": "*bf16", "previous_log_sum_exp": "*fp32",
            "drift": "*fp32",
            **dict.fromkeys((*strides, "heads", "rows", "count", "span"), "i32"), "scale": "fp32",
            **dict.fromkeys(fixed, "constexpr"),
        },
        constants=fixed,
        registers=255,
        warps=tile.warps,
        stages=tile.stages,
        aligned=strides,
    )  # fmt: skip


VARIANTS: tuple[Variant, ...] = (
    _variant(32, 1, "LLaDA-8B"),
    _variant(32, 7, "Dream-7B"),
    _variant(8, 1, "LLaDA-8B"),
)
