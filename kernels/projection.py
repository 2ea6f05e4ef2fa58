"""Norm, projection and rotation of rows: what several kernels and their twins begin with."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from dllmx.kernels.language import jit, tl


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last dimension, in float32, scaled in the dtype of ``x``."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return normed.to(x.dtype) * weight


def projected_torch(
    x: Tensor, norm_weight: Tensor, eps: float, weight: Tensor, bias: Tensor | None, size: int
) -> Tensor:
    """Heads [N, n, size] of ``weight`` [N*size, D], ``bias`` and the normed rows ``x`` [n, D]."""
    packed = F.linear(rms_norm(x, norm_weight, eps), weight, bias)
    return packed.view(x.shape[0], -1, size).transpose(0, 1)


def rotated_torch(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``heads`` [..., n, h] turned by ``cos`` and ``sin`` (half-split layout), in their dtype.

    The result has the dtype of ``heads``.
    """
    x = heads.to(cos.dtype)
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return (x * cos + turned * sin).to(heads.dtype)


@jit
def projected(  # type: ignore[no-untyped-def]
    x, norm_weight, weights, bias, row, pair, count, width, x_row, weight_row, eps,
    HALF: tl.constexpr, BIAS: tl.constexpr, WIDEN: tl.constexpr, ROWS: tl.constexpr,
    PAIRS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Channels ``pair`` and ``pair`` + HALF of one head [ROWS, PAIRS] of the normed rows ``row``.

    ``weights`` and ``bias`` begin at the head. Results are rounded wherever the twin rounds them.
    WIDEN: products of float32.
    """
    kind: tl.constexpr = x.dtype.element_ty
    lane = tl.arange(0, COLUMNS)
    source = x + row.to(tl.int64)[:, None] * x_row + lane[None, :]
    squares = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, width, COLUMNS):
        inside = (row < count)[:, None] & (start + lane < width)[None, :]
        tile = tl.load(source + start, mask=inside, other=0.0).to(tl.float32)
        squares += tile * tile
    scale = tl.rsqrt(tl.sum(squares, axis=1) / width + eps)
    weights += pair.to(tl.int64)[None, :] * weight_row + lane[:, None]
    first = tl.zeros((ROWS, PAIRS), tl.float32)
    second = tl.zeros((ROWS, PAIRS), tl.float32)
    for start in range(0, width, COLUMNS):
        within = start + lane < width
        tile = tl.load(source + start, mask=(row < count)[:, None] & within[None, :], other=0.0)
        gain = tl.load(norm_weight + start + lane, mask=within, other=0.0).to(tl.float32)
        unit = (tile.to(tl.float32) * scale[:, None]).to(kind).to(tl.float32)
        normed = (unit * gain[None, :]).to(kind)
        used = within[:, None] & (pair < HALF)[None, :]
        weight = tl.load(weights + start, mask=used, other=0.0)
        other = tl.load(weights + start + HALF * weight_row, mask=used, other=0.0)
        if WIDEN:
            normed = normed.to(tl.float32)
            weight = weight.to(tl.float32)
            other = other.to(tl.float32)
        first = tl.dot(normed, weight, first, input_precision=PRECISION)
        second = tl.dot(normed, other, second, input_precision=PRECISION)
    if BIAS:
        first += tl.load(bias + pair, mask=pair < HALF, other=0.0).to(tl.float32)[None, :]
        second += tl.load(bias + HALF + pair, mask=pair < HALF, other=0.0).to(tl.float32)[None, :]
    return first.to(kind).to(tl.float32), second.to(kind).to(tl.float32)


@jit
def rotated(  # type: ignore[no-untyped-def]
    first, second, cos, sin, inside, HALF: tl.constexpr
):  # fmt: skip
    """Both halves of keys turned by the angles at ``cos`` and ``sin``, rounded as these are."""
    kind: tl.constexpr = cos.dtype.element_ty
    cos_first = tl.load(cos, mask=inside, other=0.0).to(tl.float32)
    sin_first = tl.load(sin, mask=inside, other=0.0).to(tl.float32)
    cos_second = tl.load(cos + HALF, mask=inside, other=0.0).to(tl.float32)
    sin_second = tl.load(sin + HALF, mask=inside, other=0.0).to(tl.float32)
    first, second = first.to(kind).to(tl.float32), second.to(kind).to(tl.float32)
    kept, turned = (first * cos_first).to(kind), (second * sin_first).to(kind)
    new_first = (kept.to(tl.float32) - turned.to(tl.float32)).to(kind).to(tl.float32)
    kept, turned = (second * cos_second).to(kind), (first * sin_second).to(kind)
    new_second = (kept.to(tl.float32) + turned.to(tl.float32)).to(kind).to(tl.float32)
    return new_first, new_second
