"""Batches: what is masked, what is visible, and that a step alone decides them."""

import random

import numpy as np
import pytest
import torch

from dllmx.tasks import tiny_math
from dllmx.training import data, vocabulary
from dllmx.training.data import Stream, draw_masks

MIX = {"tiny-math": 0.5, "tiny-lists": 0.3, "tiny-code": 0.2}


@pytest.fixture(scope="module")
def stream():
    return Stream.of("llada", seed=3, size=16)


def test_a_batch_depends_on_its_step_alone(stream):
    first, again, other = (stream.batch(step, MIX) for step in (5, 5, 6))
    assert torch.equal(first.noisy, again.noisy)
    assert torch.equal(first.clean, again.clean)
    assert not torch.equal(first.noisy, other.noisy)


def test_only_the_response_is_masked_and_the_rest_is_clean(stream):
    batch = stream.batch(0, MIX)
    mask = vocabulary.token_ids("llada")["<|mdm_mask|>"]
    assert torch.equal(batch.noisy == mask, batch.masked)
    assert torch.equal(batch.noisy[~batch.masked], batch.clean[~batch.masked])
    assert not batch.masked[:, : -data.GEN_LENGTH].any()
    assert not (batch.clean == mask).any()
    assert batch.masked.any(1).all()


def test_prompts_are_padded_on_the_left_only(stream):
    batch, ids = stream.batch(0, MIX), vocabulary.token_ids("llada")
    visible = batch.visible
    assert torch.equal(~visible, (batch.clean == ids["<|endoftext|>"]) & ~visible)
    starts = visible.int().argmax(1)
    assert starts.min() == 0
    assert starts.max() > 0
    assert (batch.clean[torch.arange(16), starts] == ids["<|startoftext|>"]).all()
    assert (visible.int().diff(dim=1) >= 0).all()
    assert visible[:, -data.GEN_LENGTH - 1 :].all()


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_an_answer_ends_its_turn_and_is_filled_with_end_of_text(family):
    batch = Stream.of(family, seed=0, size=8).batch(0, MIX)
    ids, special = vocabulary.token_ids(family), vocabulary.SPECIALS[family]
    for row in batch.clean[:, -data.GEN_LENGTH :].tolist():
        end = row.index(ids[special.end_of_turn])
        assert set(row[end + 1 :]) <= {ids[special.end_of_text]}
        assert ids[special.end_of_text] not in row[:end]


def test_one_batch_in_ten_has_a_long_response(stream):
    lengths = [stream.batch(step, MIX).masked.any(0).sum().item() for step in range(10)]
    assert [length > data.GEN_LENGTH for length in lengths] == [False] * 9 + [True]


def test_a_task_with_no_share_is_not_drawn(stream):
    ids = vocabulary.token_ids("llada")
    batch = stream.batch(0, {"tiny-math": 1.0, "tiny-lists": 0.0, "tiny-code": 0.0})
    assert (batch.clean == ids["####"]).any(1).all()


def test_training_begins_in_the_broad_scope_and_ends_in_the_tasks_own():
    last, first = data.draws_at(data.BEGINNING - 1), data.draws_at(data.BEGINNING)
    rng = random.Random(0)
    broad = {last["tiny-lists"](rng).reference.get("new") for _ in range(200)}
    own = {first["tiny-lists"](rng).reference.get("new") for _ in range(200)}
    assert (broad, own) == ({None}, {None, 0})
    assert max(last["tiny-math"](rng).reference for _ in range(300)) > tiny_math.SCOPE.total
    assert max(first["tiny-math"](rng).reference for _ in range(300)) <= tiny_math.SCOPE.total


def test_masking_ratios_are_spread_evenly():
    masked, _ = draw_masks(4000, 32, np.random.default_rng(0))
    counts = masked.sum(1)
    assert counts.min() == 1
    assert counts.max() == 32


def test_three_quarters_of_the_canvases_are_masked_as_in_a_blockwise_decode():
    masked, block = draw_masks(4000, 64, np.random.default_rng(1))
    assert (block.sum(1)[:3000] == data.BLOCK).all()
    assert block[3000:].all()
    behind = block.cumsum(1) == data.BLOCK
    assert masked[:3000][behind[:3000] & ~block[:3000]].all()
    assert not masked[:3000][(block.cumsum(1) == 0)[:3000]].any()


def test_half_of_the_canvases_are_seen_as_a_dual_cache_leaves_them():
    batch = Stream.of("llada", 0, 64).batch(3, {"tiny-math": 1.0})
    assert batch.block.shape == batch.stored.shape == (32, batch.noisy.shape[1])
    for row in batch.block:
        where = row.nonzero()[:, 0].tolist()
        assert where == list(range(where[0], where[0] + data.BLOCK))
    mask = vocabulary.token_ids("llada")["<|mdm_mask|>"]
    assert bool((batch.stored[batch.block] == mask).all())
    assert torch.equal(batch.stored[~batch.block], batch.noisy[:32][~batch.block])


def test_later_more_canvases_are_seen_as_a_dual_cache_leaves_them():
    stream = Stream.of("dream", 0, 64)
    assert len(stream.batch(data.CACHED_MORE - 1, {"tiny-lists": 1.0}).block) == 32
    assert len(stream.batch(data.CACHED_MORE, {"tiny-lists": 1.0}).block) == 45
