"""Named tensors and the model over them."""

import pytest
import torch

from dllmx.training import parameters
from dllmx.training.shapes import tiny_shape


def test_the_model_shares_the_tensors():
    shape = tiny_shape("tiny-llada")
    weights = parameters.initial_parameters(shape, 0)
    model = parameters.as_model(shape, weights)
    assert model.weights.embed is weights["embed"]
    assert model.weights.layers[2].qkv is weights["layers.2.qkv"]
    assert model.weights.layers[0].qkv_bias is None


@pytest.mark.parametrize("name", ["tiny-llada", "tiny-dream"])
def test_every_tensor_learns(name):
    shape = tiny_shape(name)
    weights = parameters.initial_parameters(shape, 0)
    logits = parameters.as_model(shape, weights).forward_logits(torch.arange(12)[None])
    logits.square().mean().backward()
    assert all(value.grad is not None for value in weights.values())
    assert sum(value.numel() for value in weights.values()) * 4 < 6e6


def test_the_seed_decides_the_weights():
    shape = tiny_shape("tiny-dream")
    first, again, other = (parameters.initial_parameters(shape, seed) for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["embed"], other["embed"])


def test_the_parts_of_every_fused_matrix_add_up():
    shape = tiny_shape("tiny-dream")
    weights = parameters.initial_parameters(shape, 0)
    parts = parameters.matrix_parts(shape)
    assert len(parts) == 4 * shape.layers
    assert all(sum(rows) == len(weights[name]) for name, rows in parts.items())
