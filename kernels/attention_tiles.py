"""Tiles of the attention kernels: how they are loaded, masked, sized and spread over a GPU."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dllmx.kernels.language import jit, next_power_of_2, tl

INTERPRETED_PROCESSORS = 132  # an H100's, so that the interpreter splits keys as a GPU does
LEAST_TILES = 4  # of keys a program should have, or merging costs more than it saves
MOST_SPLITS = 16


@jit
def load_tile(  # type: ignore[no-untyped-def]
    base, row, column, row_stride, rows,
    SIZE: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Rows ``row`` of a matrix with SIZE columns; zeros outside. WIDEN: as float32."""
    inside = (row < rows)[:, None] & (column < SIZE)[None, :]
    offset = row.to(tl.int64)[:, None] * row_stride + column[None, :]
    tile = tl.load(base + offset, mask=inside, other=0.0)
    if WIDEN:
        tile = tile.to(tl.float32)
    return tile


@jit
def seen_keys(  # type: ignore[no-untyped-def]
    visible, row, key, row_stride, rows, count,
    VISIBLE: tl.constexpr,
):  # fmt: skip
    """Which of the keys ``key`` each of the rows ``row`` sees, [rows, keys] or [1, keys].

    ``VISIBLE``: dimensions of the mask, 0 without one; a mask of columns is loaded but once.
    """
    seen = (key < count)[None, :]
    if VISIBLE == 2:
        seen = tl.load(visible + key[None, :], mask=seen, other=0) != 0
    if VISIBLE == 3:
        seen = (row < rows)[:, None] & seen
        offset = row[:, None] * row_stride + key[None, :]  # int32: a mask has below 2**31 places
        seen = tl.load(visible + offset, mask=seen, other=0) != 0
    return seen


class Tiles(NamedTuple):
    """Rows and keys of a tile, warps of a program and stages of its loads."""

    rows: int
    keys: int
    warps: int
    stages: int


def tiles(rows: int, size: int, element: int, mask: int = 0) -> Tiles:
    """Tiles for ``rows`` queries with heads of ``size`` elements of ``element`` bytes.

    ``mask``: dimensions of the mask; one of rows and columns takes many registers itself, as
    float32 does.

    Tensor cores take 16 rows or more, sm_90's wide ones 64; 128 rows reuse each key most. Two
    stages of 64 keys fit the shared memory of every GPU from sm_80 on, sm_89's 99 KiB too.
    """
    wide = size > 128 or element > 2
    row_tile = min(max(next_power_of_2(rows), 16), 128)
    crowded = wide or mask == 3
    if crowded or rows < 256:
        row_tile = min(row_tile, 16 if element > 2 else 64)
    many = row_tile == 128 or (mask == 3 and row_tile == 64)
    return Tiles(row_tile, 32 if crowded else 64, 8 if many else 4, 2)


def read_out_tiles(rows: int, size: int, element: int) -> Tiles:
    """Tiles of the read-outs: narrow for few rows, as only tiles give work to many processors."""
    row_tile = min(tiles(rows, size, element).rows, 64)
    return Tiles(row_tile, 64 if row_tile == 64 else 32, 4, 2)


def splits(programs: int, count: int, key_tile: int, processors: int) -> int:
    """Into how many parts to split ``count`` keys so that all processors have a program."""
    most = min(processors // programs, count // (LEAST_TILES * key_tile), MOST_SPLITS)
    return max(most, 1)


@cache
def processors(device: torch.device) -> int:
    """Multiprocessors of ``device``."""
    if device.type != "cuda":
        return INTERPRETED_PROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


def constants(q: Tensor, keys: Tensor, visible: Tensor | None, tile: Tiles) -> dict[str, Any]:
    """The constexpr arguments and launch options shared by the attention kernels."""
    return {
        "GROUP": q.shape[1] // keys.shape[1],
        "SIZE": q.shape[3],
        "HEAD": max(next_power_of_2(q.shape[3]), 16),
        "ROWS": tile.rows,
        "KEYS": tile.keys,
        "VISIBLE": 0 if visible is None else visible.dim(),
        "WIDEN": q.device.type != "cuda",  # the interpreter multiplies bf16 as if it were integer
        "num_warps": tile.warps,
        "num_stages": tile.stages,
    }


def mask_strides(visible: Tensor | None) -> tuple[int, int]:
    """Strides of ``visible`` [B, N] or [B, R, N] over B and R."""
    if visible is None:
        return 0, 0
    return visible.stride(0), visible.stride(1) if visible.dim() == 3 else 0
