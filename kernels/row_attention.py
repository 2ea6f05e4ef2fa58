"""Attention of some query rows over all stored keys, with optional read-outs of its weights."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dllmx.kernels.attention_tiles import (
    Tiles,
    constants,
    load_tile,
    mask_strides,
    processors,
    read_out_tiles,
    seen_keys,
    splits,
    tiles,
)
from dllmx.kernels.compiled import Variant
from dllmx.kernels.language import jit, tl

READ_OUTS = ("log_sum_exp", "head_mean", "column_sums")
LOG2_E = 1.4426950408889634


class RowAttention(NamedTuple):
    """``mixed`` [B, R, H*h], the values mixed by each row's attention, in the queries' dtype.

    Read-outs in float32, None where not asked for: ``log_sum_exp`` [B, H, R] of the scaled
    scores in nats (-inf in a row that sees no key), ``head_mean`` [B, R, N] the attention
    averaged over heads, ``column_sums`` [B, N] its sum over the rows.
    """

    mixed: Tensor
    log_sum_exp: Tensor | None = None
    head_mean: Tensor | None = None
    column_sums: Tensor | None = None


def row_attention_torch(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    visible: Tensor | None = None,
    read: tuple[str, ...] = (),
) -> RowAttention:
    """Attention of rows ``q`` [B, H, R, h] over ``keys``, ``values`` [B, G, N, h], not causal.

    Queries and keys are already rotated, so rows may be at any positions; heads that share keys
    follow one another. ``visible`` [B, N] or [B, R, N] bool is True where a key may be seen; a
    row that sees none gives zeros. ``read``: which of READ_OUTS to return.
    """
    _check_read_outs(read)
    mask = None
    if visible is not None:
        mask = visible[:, None, None, :] if visible.dim() == 2 else visible[:, None]
    grouped = q.shape[1] != keys.shape[1]
    mixed = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=grouped)
    mixed = mixed.transpose(1, 2).flatten(2)
    if not read:
        return RowAttention(mixed)
    scores = _scores(q, keys)  # [B, H, R, N]
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    attention = scores.softmax(-1)
    if mask is not None:
        attention = attention.masked_fill(~mask, 0.0)
    mean = attention.mean(1)
    return RowAttention(
        mixed,
        scores.logsumexp(-1) if "log_sum_exp" in read else None,
        mean if "head_mean" in read else None,
        mean.sum(1) if "column_sums" in read else None,
    )


def _scores(q: Tensor, keys: Tensor) -> Tensor:
    batch, heads, rows, size = q.shape
    grouped = q.float().reshape(batch, keys.shape[1], -1, size)
    scores = grouped @ keys.float().transpose(2, 3) / size**0.5
    return scores.view(batch, heads, rows, -1)


def _check_read_outs(read: tuple[str, ...]) -> None:
    unknown = [name for name in read if name not in READ_OUTS]
    if unknown:
        raise ValueError(f"no read-out {unknown[0]!r}; there are {', '.join(READ_OUTS)}")


@jit
def mix_kernel(  # type: ignore[no-untyped-def]
    q, keys, values, visible, mixed, log_sum_exp,
    q_batch, q_head, q_row, k_batch, k_head, k_row,
    v_batch, v_head, v_row, visible_batch, visible_row,
    batches, heads, rows, count, span, scale,
    GROUP: tl.constexpr, SIZE: tl.constexpr, HEAD: tl.constexpr, ROWS: tl.constexpr,
    KEYS: tl.constexpr, VISIBLE: tl.constexpr, WIDEN: tl.constexpr, FLOOR: tl.constexpr = -1.0e30,
):  # fmt: skip
    """One program: a tile of rows of one head over ``span`` keys, by an online softmax.

    ``mixed`` [S, B, R, H*h], ``log_sum_exp`` [S, B, H, R] of the S splits of the keys. ``scale``
    turns products into scores in units of log 2, as powers of two are cheaper than of e.
    The precision named at the products holds for float32 only, on tensor cores nearly as exact.
    """
    split = tl.program_id(2).to(tl.int64)
    batch, head = (tl.program_id(1) // heads).to(tl.int64), tl.program_id(1) % heads
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, HEAD)
    q += batch * q_batch + head * q_head
    keys += batch * k_batch + (head // GROUP) * k_head
    values += batch * v_batch + (head // GROUP) * v_head
    if VISIBLE > 0:
        visible += batch * visible_batch
    queries = load_tile(q, row, column, q_row, rows, SIZE, WIDEN)
    top = tl.full([ROWS], FLOOR, tl.float32)
    mass = tl.zeros([ROWS], tl.float32)
    mix = tl.zeros([ROWS, HEAD], tl.float32)
    first = tl.program_id(2) * span
    for start in range(first, tl.minimum(first + span, count), KEYS):
        key = start + tl.arange(0, KEYS)
        key_tile = load_tile(keys, key, column, k_row, count, SIZE, WIDEN)
        scores = tl.dot(queries, tl.trans(key_tile), input_precision="tf32x3") * scale
        seen = seen_keys(visible, row, key, visible_row, rows, count, VISIBLE)
        scores = tl.where(seen, scores, FLOOR)
        higher = tl.maximum(top, tl.max(scores, 1))
        weight = tl.where(seen, tl.exp2(scores - higher[:, None]), 0.0)
        fade = tl.exp2(top - higher)
        mass = mass * fade + tl.sum(weight, 1)
        value_tile = load_tile(values, key, column, v_row, count, SIZE, WIDEN)
        weight = weight.to(value_tile.dtype)
        mix = tl.dot(weight, value_tile, mix * fade[:, None], input_precision="tf32x3")
        top = higher
    nothing = mass == 0.0
    mass = tl.where(nothing, 1.0, mass)
    mix = mix / mass[:, None]
    row_index = (split * batches + batch) * rows + row
    inside = (row < rows)[:, None] & (column < SIZE)[None, :]
    out = mixed + (row_index * heads + head)[:, None] * SIZE + column[None, :]
    tl.store(out, mix.to(mixed.dtype.element_ty), mask=inside)
    natural = tl.where(nothing, float("-inf"), (top + tl.log2(mass)) / 1.4426950408889634)
    head_index = (split * batches + batch) * heads + head
    tl.store(log_sum_exp + head_index * rows + row, natural, mask=row < rows)


@jit
def merge_kernel(  # type: ignore[no-untyped-def]
    partial, partial_sums, mixed, log_sum_exp,
    heads, rows, batches, splits,
    SIZE: tl.constexpr, HEAD: tl.constexpr, FLOOR: tl.constexpr = -1.0e30,
):  # fmt: skip
    """One program a row of a head: what its S splits found, weighted by their shares."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1) % heads
    batch = (tl.program_id(1) // heads).to(tl.int64)
    column = tl.arange(0, HEAD)
    sum_at = (batch * heads + head) * rows + row
    mix_at = ((batch * rows + row) * heads + head) * SIZE
    step = batches * heads * rows  # from one split's results to the next's
    top = tl.full([1], FLOOR, tl.float32)
    at = partial_sums + sum_at + tl.arange(0, 1)
    for _ in range(splits):
        top = tl.maximum(top, tl.load(at))
        at += step
    mass = tl.zeros([1], tl.float32)
    mix = tl.zeros([HEAD], tl.float32)
    at = partial_sums + sum_at + tl.arange(0, 1)
    found_at = partial + mix_at + column
    for _ in range(splits):
        share = tl.exp(tl.load(at) - top)
        mass += share
        mix += share * tl.load(found_at, mask=column < SIZE, other=0.0)
        at += step
        found_at += step * SIZE
    nothing = mass == 0.0
    mass = tl.where(nothing, 1.0, mass)
    mix = mix / mass
    tl.store(mixed + mix_at + column, mix.to(mixed.dtype.element_ty), mask=column < SIZE)
    natural = tl.where(nothing, float("-inf"), top + tl.log(mass))
    tl.store(log_sum_exp + sum_at + tl.arange(0, 1), natural)


@jit
def read_out_kernel(  # type: ignore[no-untyped-def]
    q, keys, visible, log_sum_exp, head_mean, column_sums,
    q_batch, q_head, q_row, k_batch, k_head, k_row,
    visible_batch, visible_row, heads, rows, count, scale,
    GROUP: tl.constexpr, SIZE: tl.constexpr, HEAD: tl.constexpr, ROWS: tl.constexpr,
    KEYS: tl.constexpr, VISIBLE: tl.constexpr, WIDEN: tl.constexpr,
    MEAN: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """One program: a tile of the head-mean attention, from scores and known sums, over all heads.

    ``column_sums`` [row tiles, B, N]: summed within the tile only, so that the order of the
    additions, and with it the result, never changes.
    """
    batch = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    key = tl.program_id(1) * KEYS + tl.arange(0, KEYS)
    column = tl.arange(0, HEAD)
    q += batch * q_batch
    keys += batch * k_batch
    if VISIBLE > 0:
        visible += batch * visible_batch
    log_sum_exp += batch * heads * rows
    seen = seen_keys(visible, row, key, visible_row, rows, count, VISIBLE)
    total = tl.zeros([ROWS, KEYS], tl.float32)
    for head in range(heads):
        queries = load_tile(q + head * q_head, row, column, q_row, rows, SIZE, WIDEN)
        base = keys + (head // GROUP) * k_head
        key_tile = load_tile(base, key, column, k_row, count, SIZE, WIDEN)
        scores = tl.dot(queries, tl.trans(key_tile), input_precision="ieee") * scale
        known = tl.load(log_sum_exp + head * rows + row, mask=row < rows, other=0.0)
        weight = tl.exp2(scores - (known * 1.4426950408889634)[:, None])
        total += tl.where(seen, weight, 0.0)
    total = tl.where((row < rows)[:, None], total / heads, 0.0)
    if MEAN:
        offset = (batch * rows + row)[:, None] * count + key[None, :]
        inside = (row < rows)[:, None] & (key < count)[None, :]
        tl.store(head_mean + offset, total, mask=inside)
    if SUMS:
        tile = tl.program_id(0) * tl.num_programs(2) + batch
        tl.store(column_sums + tile * count + key, tl.sum(total, 0), mask=key < count)


def row_attention_triton(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    visible: Tensor | None = None,
    read: tuple[str, ...] = (),
) -> RowAttention:
    """``row_attention_torch`` without a tensor of scores in memory; any strides but the last."""
    _check_read_outs(read)
    for name, tensor in (("q", q), ("keys", keys), ("values", values)):
        if tensor.stride(-1) != 1:
            raise ValueError(f"{name} has strides {tensor.stride()}: need 1 in the last dimension")
    if visible is not None:
        visible = visible if visible.stride(-1) == 1 else visible.contiguous()
        visible = visible.view(torch.uint8)
    mixed, log_sum_exp = _mix(q, keys, values, visible)
    mean, sums = None, None
    if "head_mean" in read or "column_sums" in read:
        mean, sums = _read_out(q, keys, visible, log_sum_exp, read)
    return RowAttention(mixed, log_sum_exp if "log_sum_exp" in read else None, mean, sums)


def _mix(q: Tensor, keys: Tensor, values: Tensor, visible: Tensor | None) -> tuple[Tensor, Tensor]:
    batch, heads, rows, size = q.shape
    count = keys.shape[2]
    tile = tiles(rows, size, q.element_size(), 0 if visible is None else visible.dim())
    row_tiles = -(-rows // tile.rows)
    parts = splits(row_tiles * batch * heads, count, tile.keys, processors(q.device))
    span = -(-count // (parts * tile.keys)) * tile.keys
    mixed = q.new_empty(batch, rows, heads * size)
    sums = q.new_empty(batch, heads, rows, dtype=torch.float32)
    to_mixed, to_sums = mixed, sums
    if parts > 1:
        to_mixed = mixed.new_empty(parts, *mixed.shape, dtype=torch.float32)
        to_sums = sums.new_empty(parts, *sums.shape)
    fixed = constants(q, keys, visible, tile)
    mix_kernel[(row_tiles, batch * heads, parts)](
        q, keys, values, visible, to_mixed, to_sums,
        *q.stride()[:3], *keys.stride()[:3], *values.stride()[:3], *mask_strides(visible),
        batch, heads, rows, count, span, LOG2_E / size**0.5, **fixed,
    )  # fmt: skip
    if parts > 1:
        merge_kernel[(rows, batch * heads)](
            to_mixed, to_sums, mixed, sums, heads, rows, batch, parts,
            SIZE=size, HEAD=fixed["HEAD"], num_warps=1,
        )  # fmt: skip
    return mixed, sums


def _read_out(
    q: Tensor, keys: Tensor, visible: Tensor | None, log_sum_exp: Tensor, read: tuple[str, ...]
) -> tuple[Tensor | None, Tensor | None]:
    batch, heads, rows, size = q.shape
    count = keys.shape[2]
    tile = read_out_tiles(rows, size, q.element_size())
    row_tiles = -(-rows // tile.rows)
    mean = sums = None
    if "head_mean" in read:
        mean = log_sum_exp.new_empty(batch, rows, count)
    if "column_sums" in read:
        sums = log_sum_exp.new_empty(row_tiles, batch, count)
    read_out_kernel[(row_tiles, -(-count // tile.keys), batch)](
        q, keys, visible, log_sum_exp, mean, sums,
        *q.stride()[:3], *keys.stride()[:3], *mask_strides(visible),
        heads, rows, count, LOG2_E / size**0.5,
        MEAN=mean is not None, SUMS=sums is not None, **constants(q, keys, visible, tile),
    )  # fmt: skip
    return mean, None if sums is None else sums.sum(0)


def _variant(
    name: str, kernel: Any, pointers: dict[str, str], scalars: str, fixed: dict[str, Any],
    tile: Tiles,
) -> Variant:  # fmt: skip
    """``scalars``: names of the integers; * stands behind those that 16 divides."""
    integers = scalars.replace("*", "").split()
    numbers = {name: "fp32" if name == "scale" else "i32" for name in integers}
    return Variant(
        name=f"row_attention, {name}",
        kernel=kernel,
        signature={**pointers, **numbers, **dict.fromkeys(fixed, "constexpr")},
        constants={**fixed, **{key: None for key, kind in pointers.items() if kind == NONE}},
        registers=255,
        warps=tile.warps,
        stages=tile.stages,
        aligned=tuple(name[:-1] for name in scalars.split() if name.endswith("*")),
    )


NONE = "constexpr"
STRIDES = "q_batch* q_head* q_row* k_batch* k_head* k_row*"


def _attention_variants(rows: int, group: int, visible: int) -> tuple[Variant, Variant]:
    heads, seen = {"GROUP": group, "SIZE": 128, "HEAD": 128}, {"VISIBLE": visible, "WIDEN": False}
    mask = "*u8" if visible else NONE
    name = f"{rows} rows, {group} heads share a key; mask {visible}"
    tile = tiles(rows, 128, 2, visible)
    mix = _variant(
        f"mixed, {name}", mix_kernel,
        {"q": "*bf16", "keys": "*bf16", "values": "*bf16", "visible": mask,
         "mixed": "*fp32" if rows < 256 else "*bf16", "log_sum_exp": "*fp32"},
        f"{STRIDES} v_batch* v_head* v_row* visible_batch visible_row "
        "batches heads rows* count span* scale",
        {**heads, "ROWS": tile.rows, "KEYS": tile.keys, **seen, "FLOOR": -1.0e30}, tile,
    )  # fmt: skip
    tile = read_out_tiles(rows, 128, 2)
    read = _variant(
        f"read-outs, {name}", read_out_kernel,
        {"q": "*bf16", "keys": "*bf16", "visible": mask, "log_sum_exp": "*fp32",
         "head_mean": "*fp32", "column_sums": "*fp32"},
        f"{STRIDES} visible_batch visible_row heads rows* count scale",
        {**heads, "ROWS": tile.rows, "KEYS": tile.keys, **seen, "MEAN": True, "SUMS": True}, tile,
    )  # fmt: skip
    return mix, read


VARIANTS: tuple[Variant, ...] = (
    *_attention_variants(32, 1, visible=0),
    *_attention_variants(48, 7, visible=2),
    *_attention_variants(1280, 1, visible=3),
    *_attention_variants(1280, 7, visible=2),
    _variant(
        "merged", merge_kernel,
        {"partial": "*fp32", "partial_sums": "*fp32", "mixed": "*bf16", "log_sum_exp": "*fp32"},
        "heads rows* batches splits", {"SIZE": 128, "HEAD": 128, "FLOOR": -1.0e30},
        Tiles(1, 1, 1, 1),
    ),
)  # fmt: skip
