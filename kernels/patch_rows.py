"""Keys and values of chosen rows written into the store: norm, projection, rotation and scatter.

One launch takes the place of a norm, a product, a rotation and two scatters; the projected rows are
never in memory by themselves. Each program owns some channel pairs (j, j + h/2) of one head's keys
or values, because the rotation mixes the two halves of a key, and streams their weights once for a
tile of rows. Where there are few key/value heads the pairs are dealt to more programs, so that
enough of them read weights at a time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from dllmx.kernels.compiled import Variant
from dllmx.kernels.language import jit, next_power_of_2, tl
from dllmx.kernels.projection import projected, projected_torch, rotated, rotated_torch

SMALLEST_DOT = 16
MOST_ROWS = 64
FEW_HEADS = 8


class Tiles(NamedTuple):
    """Rows, channel pairs and columns of a tile, warps of a program and stages of its loads."""

    rows: int
    pairs: int
    columns: int
    warps: int
    stages: int


def patch_rows_torch(
    x: Tensor,
    norm_weight: Tensor,
    eps: float,
    kv_weight: Tensor,
    kv_bias: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    rows: Tensor,
    keys: Tensor,
    values: Tensor,
) -> None:
    """Overwrite the ``rows`` [n] int64 of ``keys``, ``values`` [G, T, h] by those of inputs ``x``.

    ``x`` [n, D] are a layer's inputs and ``norm_weight`` [D] its attention norm; ``kv_weight``
    [2*G*h, D] and ``kv_bias`` [2*G*h] project to all keys, then all values, in the dtype of ``x``.
    Keys are rotated by ``cos`` and ``sin`` [n, h] (half-split layout) in their dtype. No row may
    come twice.
    """
    heads, _, size = keys.shape
    fresh = projected_torch(x, norm_weight, eps, kv_weight, kv_bias, size)  # [2G, n, h]
    keys.index_copy_(1, rows, rotated_torch(fresh[:heads], cos, sin).to(keys.dtype))
    values.index_copy_(1, rows, fresh[heads:].to(values.dtype))


@jit
def store_halves(  # type: ignore[no-untyped-def]
    place, first, second, inside, kind: tl.constexpr, HALF: tl.constexpr
):  # fmt: skip
    """Write both halves of some channels at ``place``, rounded to ``kind`` on their way."""
    tl.store(place, first.to(kind).to(place.dtype.element_ty), mask=inside)
    tl.store(place + HALF, second.to(kind).to(place.dtype.element_ty), mask=inside)


@jit
def patch_rows_kernel(  # type: ignore[no-untyped-def]
    x, norm_weight, kv_weight, kv_bias, cos, sin, rows, keys, values,
    count, width, heads, x_row, weight_row, cos_row, sin_row, key_head, key_row,
    value_head, value_row, eps,
    HALF: tl.constexpr, BIAS: tl.constexpr, WIDEN: tl.constexpr,
    ROWS: tl.constexpr, PAIRS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One program a tile of rows, a head, and a tile of channel pairs of its keys or its values.

    Results are rounded wherever the twin rounds them. WIDEN: products of float32.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    head = tl.program_id(1)
    tiles = tl.cdiv(HALF, PAIRS)
    part = tl.program_id(2) // tiles  # 0 keys, 1 values
    pair = (tl.program_id(2) % tiles) * PAIRS + tl.arange(0, PAIRS)
    whole = part * heads + head
    weights = kv_weight + (whole * 2 * HALF).to(tl.int64) * weight_row
    bias = kv_bias
    if BIAS:
        bias += whole * 2 * HALF
    first, second = projected(
        x, norm_weight, weights, bias, row, pair, count, width, x_row, weight_row, eps,
        HALF, BIAS, WIDEN, ROWS, PAIRS, COLUMNS, "ieee",
    )  # fmt: skip
    place = tl.load(rows + row, mask=row < count, other=0)[:, None]
    stored = (row < count)[:, None] & (pair < HALF)[None, :]
    if part == 0:
        at_cos = cos + row[:, None] * cos_row + pair[None, :]
        at_sin = sin + row[:, None] * sin_row + pair[None, :]
        first, second = rotated(first, second, at_cos, at_sin, stored, HALF)
        to_keys = keys + head.to(tl.int64) * key_head + place * key_row + pair[None, :]
        store_halves(to_keys, first, second, stored, x.dtype.element_ty, HALF)
    else:
        to_values = values + head.to(tl.int64) * value_head + place * value_row + pair[None, :]
        store_halves(to_values, first, second, stored, x.dtype.element_ty, HALF)


def patch_rows_triton(
    x: Tensor,
    norm_weight: Tensor,
    eps: float,
    kv_weight: Tensor,
    kv_bias: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    rows: Tensor,
    keys: Tensor,
    values: Tensor,
) -> None:
    """``patch_rows_torch`` in one launch; any strides but the last of each tensor."""
    named = {"x": x, "norm_weight": norm_weight, "kv_weight": kv_weight, "cos": cos, "sin": sin,
             "rows": rows, "keys": keys, "values": values}  # fmt: skip
    for name, tensor in named.items():
        if tensor.stride(-1) != 1:
            raise ValueError(f"{name} has strides {tensor.stride()}: need 1 in the last dimension")
    count, width = x.shape
    heads, _, size = keys.shape
    tile = tiles(count, heads, size, x.element_size())
    grid = (-(-count // tile.rows), heads, 2 * -(-(size // 2) // tile.pairs))
    patch_rows_kernel[grid](
        x, norm_weight, kv_weight, kv_bias, cos, sin, rows, keys, values,
        count, width, heads, x.stride(0), kv_weight.stride(0), cos.stride(0), sin.stride(0),
        *keys.stride()[:2], *values.stride()[:2], eps,
        WIDEN=x.device.type != "cuda",  # the interpreter multiplies bf16 as if it were integer
        **_constants(size, kv_bias is not None, tile),
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


def tiles(rows: int, heads: int, size: int, element: int) -> Tiles:
    """Tiles for ``rows`` of ``heads`` key/value heads of ``size`` channels of ``element`` bytes."""
    most = MOST_ROWS if element == 2 else SMALLEST_DOT  # products of float32 take many registers
    at_once = min(max(next_power_of_2(rows), SMALLEST_DOT), most)
    pairs = SMALLEST_DOT if heads <= FEW_HEADS else 2 * SMALLEST_DOT
    pairs = min(pairs, max(next_power_of_2(size // 2), SMALLEST_DOT))
    return Tiles(at_once, pairs, 256 // element, warps=4, stages=3)


def _constants(size: int, bias: bool, tile: Tiles) -> dict[str, Any]:
    return {
        "HALF": size // 2, "BIAS": bias,
        "ROWS": tile.rows, "PAIRS": tile.pairs, "COLUMNS": tile.columns,
    }  # fmt: skip


def _variant(name: str, rows: int, heads: int, angles: str, bias: bool) -> Variant:
    tile = tiles(rows, heads, 128, 2)
    pointers = dict.fromkeys(("x", "norm_weight", "kv_weight"), "*bf16")
    pointers |= {"kv_bias": "*bf16" if bias else "constexpr", "cos": angles, "sin": angles}
    pointers |= {"rows": "*i64", "keys": "*bf16", "values": "*bf16"}
    strides = ("x_row", "weight_row", "cos_row", "sin_row", "key_head", "key_row", "value_head",
               "value_row")  # fmt: skip
    fixed = {"WIDEN": False, **_constants(128, bias, tile)}
    order = ("HALF", "BIAS", "WIDEN", "ROWS", "PAIRS", "COLUMNS")
    return Variant(
        name=f"patch_rows, {rows} rows of {name}",
        kernel=patch_rows_kernel,
        signature={
            **pointers, **dict.fromkeys(("count", "width", "heads", *strides), "i32"),
            "eps": "fp32", **dict.fromkeys(order, "constexpr"),
        },
        constants={**fixed, **({} if bias else {"kv_bias": None})},
        registers=255,
        warps=tile.warps,
        stages=tile.stages,
        aligned=("width", *strides),
    )  # fmt: skip


VARIANTS: tuple[Variant, ...] = tuple(
    _variant(name, rows, heads, angles, bias)
    for rows in (8, 48)
    for name, heads, angles, bias in (
        ("LLaDA-8B", 32, "*fp32", False),
        ("Dream-7B", 4, "*bf16", True),
    )
)
