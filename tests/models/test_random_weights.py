from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from plain_model import DREAM_KEYS, LLADA_KEYS

from dllmx.models.families import shape_of
from dllmx.models.layout import named_views
from dllmx.models.model import Model, ModelShape, Weights
from dllmx.models.random_weights import random_weights


@pytest.fixture(params=[LLADA_KEYS, DREAM_KEYS], ids=["llada", "dream"])
def shape(request: pytest.FixtureRequest) -> ModelShape:
    return shape_of(request.param, "test")


def views(weights: Weights, shape: ModelShape) -> dict[str, torch.Tensor]:
    return named_views(weights, shape)


def test_a_seed_gives_the_same_weights_every_time(shape):
    first = views(random_weights(shape, 7, torch.float32, "cpu"), shape)
    again = views(random_weights(shape, 7, torch.float32, "cpu"), shape)
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_another_seed_gives_other_weights(shape):
    first = views(random_weights(shape, 7, torch.float32, "cpu"), shape)
    other = views(random_weights(shape, 8, torch.float32, "cpu"), shape)
    matrices = [name for name in first if first[name].dim() == 2]
    assert matrices
    assert not any(torch.equal(first[name], other[name]) for name in matrices)


def test_layers_do_not_depend_on_how_many_there_are(shape):
    whole = views(random_weights(shape, 0, torch.float32, "cpu"), shape)
    cut_shape = replace(shape, layers=1)
    cut = views(random_weights(cut_shape, 0, torch.float32, "cpu"), cut_shape)
    assert len(cut) < len(whole)
    assert all(torch.equal(cut[name], whole[name]) for name in cut)


def test_no_two_tensors_are_alike(shape):
    parts = views(random_weights(shape, 0, torch.float32, "cpu"), shape)
    starts = [tuple(part.flatten()[:8].tolist()) for part in parts.values() if part.dim() == 2]
    assert len(set(starts)) == len(starts)


def test_the_global_random_state_is_left_alone(shape):
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    random_weights(shape, 0, torch.float32, "cpu")
    assert torch.equal(torch.rand(4), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_have_the_dtype_and_give_finite_logits(shape, dtype):
    model = Model(shape, random_weights(shape, 0, dtype, "cpu"))
    assert model.dtype == dtype
    assert torch.isfinite(model.forward_logits(torch.arange(20)[None])).all()


def test_spread_and_norms_are_those_of_a_fresh_model(shape):
    weights = random_weights(shape, 0, torch.float32, "cpu")
    assert float(weights.layers[0].gate_up.std()) == pytest.approx(0.02, rel=0.1)
    assert torch.equal(weights.final_norm, torch.ones(shape.width))


def test_tied_embeddings_share_one_tensor(shape):
    weights = random_weights(replace(shape, tied=True), 0, torch.float32, "cpu")
    assert weights.head is weights.embed
