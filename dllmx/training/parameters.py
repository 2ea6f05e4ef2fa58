"""A model's weights as named trainable tensors, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from dllmx.models.layers import LayerWeights
from dllmx.models.model import Model, ModelShape, Weights

LAYER_FIELDS = ("attn_norm", "qkv", "qkv_bias", "attn_out", "mlp_norm", "gate_up", "mlp_down")


def initial_parameters(shape: ModelShape, seed: int) -> dict[str, Tensor]:
    """Fresh trainable float32 tensors: norms 1, biases 0, matrices normal by their fan-in.

    What writes into the residual stream starts smaller by the square root of its number of writers.
    """
    generator = torch.Generator().manual_seed(seed)
    sizes = _sizes(shape)
    values = {name: _initial(name, size, shape, generator) for name, size in sizes.items()}
    return {name: value.requires_grad_() for name, value in values.items()}


def as_model(shape: ModelShape, parameters: Mapping[str, Tensor]) -> Model:
    """The model over these very tensors (shared, not copied)."""
    layers = tuple(
        LayerWeights(**{f: parameters.get(f"layers.{i}.{f}") for f in LAYER_FIELDS})  # type: ignore[arg-type]
        for i in range(shape.layers)
    )
    weights = Weights(parameters["embed"], layers, parameters["final_norm"], parameters["head"])
    return Model(shape, weights)


def matrix_parts(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Row counts of the parts of every matrix inside a layer, by the name of the tensor."""
    inner, small = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    parts = {
        "qkv": (inner, small, small),
        "attn_out": (shape.width,),
        "gate_up": (shape.mlp_width, shape.mlp_width),
        "mlp_down": (shape.width,),
    }
    return {f"layers.{i}.{name}": rows for i in range(shape.layers) for name, rows in parts.items()}


def _sizes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    width, inner = shape.width, shape.heads * shape.head_dim
    packed = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm": (width,),
        "qkv": (packed, width),
        "attn_out": (width, inner),
        "mlp_norm": (width,),
        "gate_up": (2 * shape.mlp_width, width),
        "mlp_down": (width, shape.mlp_width),
    }
    if shape.qkv_bias:
        layer["qkv_bias"] = (packed,)
    sizes: dict[str, tuple[int, ...]] = {"embed": (shape.vocab, width)}
    for i in range(shape.layers):
        sizes |= {f"layers.{i}.{name}": size for name, size in layer.items()}
    return sizes | {"final_norm": (width,), "head": (shape.vocab, width)}


def _initial(
    name: str, size: tuple[int, ...], shape: ModelShape, generator: torch.Generator
) -> Tensor:
    field = name.rpartition(".")[2]
    if field.endswith("norm"):
        return torch.ones(size)
    if field == "qkv_bias":
        return torch.zeros(size)
    spread = 0.5 if field == "embed" else 1 / math.sqrt(size[-1])
    if field in ("attn_out", "mlp_down"):
        spread /= math.sqrt(2 * shape.layers)
    return torch.randn(size, generator=generator) * spread
