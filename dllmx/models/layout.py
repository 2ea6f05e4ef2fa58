"""Where each tensor of a checkpoint lies inside the fused weights."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from dllmx.models.families import FAMILIES
from dllmx.models.family import TensorNames
from dllmx.models.layers import LayerWeights
from dllmx.models.model import ModelShape, Weights


def empty_weights(shape: ModelShape, dtype: torch.dtype, device: torch.device | str) -> Weights:
    """Weights of ``shape`` whose values are not set; device "meta" gives sizes without memory."""

    def empty(*size: int) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    embed = empty(shape.vocab, shape.width)
    return Weights(
        embed=embed,
        layers=tuple(_empty_layer(shape, dtype, device) for _ in range(shape.layers)),
        final_norm=empty(shape.width),
        head=embed if shape.tied else empty(shape.vocab, shape.width),
    )


def named_views(weights: Weights, shape: ModelShape) -> dict[str, Tensor]:
    """The checkpoint's name of every tensor, and the part of ``weights`` that it fills.

    The tensors are views that share memory with ``weights``.
    """
    names = FAMILIES[shape.family].names
    views = {
        f"{names.embed}.weight": weights.embed,
        f"{names.final_norm}.weight": weights.final_norm,
    }
    if not shape.tied:
        views[f"{names.head}.weight"] = weights.head
    for index, layer in enumerate(weights.layers):
        prefix = names.layer.format(index=index)
        views.update((prefix + name, view) for name, view in _layer_views(layer, shape, names))
    return views


def _empty_layer(shape: ModelShape, dtype: torch.dtype, device: torch.device | str) -> LayerWeights:
    packed = (shape.heads + 2 * shape.kv_heads) * shape.head_dim

    def empty(*size: int) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    return LayerWeights(
        attn_norm=empty(shape.width),
        qkv=empty(packed, shape.width),
        qkv_bias=empty(packed) if shape.qkv_bias else None,
        attn_out=empty(shape.width, shape.heads * shape.head_dim),
        mlp_norm=empty(shape.width),
        gate_up=empty(2 * shape.mlp_width, shape.width),
        mlp_down=empty(shape.width, shape.mlp_width),
    )


def _layer_views(
    layer: LayerWeights, shape: ModelShape, names: TensorNames
) -> Iterator[tuple[str, Tensor]]:
    rows = [shape.heads * shape.head_dim, *[shape.kv_heads * shape.head_dim] * 2]
    gate, up = layer.gate_up.chunk(2)
    yield f"{names.attn_norm}.weight", layer.attn_norm
    for name, part in zip((names.q, names.k, names.v), torch.split(layer.qkv, rows), strict=True):
        yield f"{name}.weight", part
    if layer.qkv_bias is not None:
        for name, part in zip(
            (names.q, names.k, names.v), torch.split(layer.qkv_bias, rows), strict=True
        ):
            yield f"{name}.bias", part
    yield f"{names.attn_out}.weight", layer.attn_out
    yield f"{names.mlp_norm}.weight", layer.mlp_norm
    yield f"{names.gate}.weight", gate
    yield f"{names.up}.weight", up
    yield f"{names.down}.weight", layer.mlp_down
