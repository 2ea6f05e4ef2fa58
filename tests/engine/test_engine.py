"""Forwards over chosen rows against a plain full forward."""

from __future__ import annotations

import pytest
import torch
from building import random_model
from torch import Tensor

from dllmx.engine.engine import Engine
from dllmx.engine.interface import AttentionRequest, LayerContext, Rows
from dllmx.engine.rows import RowSet, SlotSet
from dllmx.models import layers
from dllmx.models.model import Model

FAMILIES = ("llada", "dream")
WIDTH = 14
EVERYTHING = frozenset({"k", "v", "k_unrotated", "x", "q", "attn_out", "mlp_out"})
NO_ROWS = torch.empty(0, dtype=torch.long)


def canvas(slots: int = 1) -> Tensor:
    return torch.randint(1, 58, (slots, WIDTH), generator=torch.Generator().manual_seed(1))


def engine_of(model: Model, ids: Tensor, stored: frozenset[str] = EVERYTHING) -> Engine:
    return Engine(model, ids, [0] * ids.shape[0], stored)


def every_row(slots: int = 1) -> RowSet:
    return RowSet.of_span(0, WIDTH, slots, torch.device("cpu"))


def logits_of(model: Model, hidden: Tensor) -> Tensor:
    """Raw logits, shifted as ``forward_logits`` shifts them."""
    if model.shape.shifted:
        hidden = torch.cat([hidden[:, :1], hidden[:, :-1]], dim=1)
    return model.head_logits(hidden)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("stored", [frozenset(), frozenset({"k", "v"}), EVERYTHING], ids=len)
def test_all_rows_equal_the_plain_forward(family: str, stored: frozenset[str]) -> None:
    model, ids = random_model(family), canvas(2)
    hidden = engine_of(model, ids, stored).forward(SlotSet((0, 1)), every_row(2))
    torch.testing.assert_close(logits_of(model, hidden), model.forward_logits(ids))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rows", [[3, 4, 5], [0, 5, 13], [13]], ids=str)
def test_any_rows_after_a_full_forward_give_the_same_rows(family: str, rows: list[int]) -> None:
    model, ids = random_model(family), canvas(3)
    engine = engine_of(model, ids)
    full = engine.forward(SlotSet((0, 1, 2)), every_row(3))
    for slots in ((0, 1, 2), (0, 2), (1,)):
        columns = [torch.tensor(rows)] * len(slots)
        part = engine.forward(SlotSet(slots), RowSet.of_columns(columns, torch.device("cpu")))
        torch.testing.assert_close(part, full[list(slots)][:, rows])


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_may_differ_between_slots(family: str) -> None:
    model, ids = random_model(family), canvas(2)
    engine = engine_of(model, ids)
    full = engine.forward(SlotSet((0, 1)), every_row(2))
    columns = [torch.tensor([1, 4]), torch.tensor([7, 8])]
    part = engine.forward(SlotSet((0, 1)), RowSet.of_columns(columns, torch.device("cpu")))
    torch.testing.assert_close(part[0], full[0, [1, 4]])
    torch.testing.assert_close(part[1], full[1, [7, 8]])


@pytest.mark.parametrize("family", FAMILIES)
def test_absent_rows_equal_rows_masked_as_keys(family: str) -> None:
    model, ids = random_model(family), canvas()
    present = torch.tensor([0, 1, 2, 5, 6, 9])
    rows = RowSet(present[None], None)
    absent = engine_of(model, ids).forward(SlotSet((0,)), rows, visible=present)
    keys_seen = torch.zeros(1, WIDTH, dtype=torch.bool)
    keys_seen[0, present] = True
    torch.testing.assert_close(absent[0], _forward_with_key_mask(model, ids, keys_seen)[0, present])


def _forward_with_key_mask(model: Model, ids: Tensor, seen: Tensor) -> Tensor:
    shape, x = model.shape, model.weights.embed[ids]
    table = model.rotation_table(WIDTH)
    rotation = layers.Rotation(table.cos[None], table.sin[None])
    for layer in model.weights.layers:
        normed = layers.rms_norm(x, layer.attn_norm, shape.norm_eps)
        q, k, v = layers.project_qkv(normed, layer, shape.heads, shape.kv_heads)
        q, k = layers.rotate(q, rotation), layers.rotate(k, rotation)
        x = x + layers.attend(q, k, v, seen) @ layer.attn_out.T
        x = x + layers.feed_forward(layers.rms_norm(x, layer.mlp_norm, shape.norm_eps), layer)
    return x


@pytest.mark.parametrize("family", FAMILIES)
def test_a_hook_that_keeps_the_rows_changes_nothing(family: str) -> None:
    model, ids = random_model(family), canvas()
    plain = engine_of(model, ids).forward(SlotSet((0,)), every_row())
    seen: list[int] = []

    def hook(context: LayerContext) -> None:
        seen.append(context.layer)
        assert context.store["k"].shape == (model.shape.kv_heads, WIDTH, model.shape.head_dim)
        assert context.k.shape == context.store["k"].shape

    hidden, rows, row_layers, _ = engine_of(model, ids).forward_hooked(
        0, torch.arange(WIDTH), hook, None, NO_ROWS
    )
    torch.testing.assert_close(hidden, plain[0])
    assert rows.tolist() == list(range(WIDTH))
    assert (seen, row_layers) == ([0, 1, 2], 3 * WIDTH)


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_that_leave_at_the_last_layer_do_not_change_those_that_stay(family: str) -> None:
    model, ids = random_model(family), canvas()
    plain = engine_of(model, ids).forward(SlotSet((0,)), every_row())
    kept = torch.tensor([4, 5, 9])
    hidden, rows, row_layers, _ = engine_of(model, ids).forward_hooked(
        0, torch.arange(WIDTH), lambda c: kept if c.layer == 2 else None, None, NO_ROWS
    )
    torch.testing.assert_close(hidden, plain[0, kept])
    assert rows.tolist() == kept.tolist()
    assert row_layers == 2 * WIDTH + 3


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_that_join_bring_their_stored_input(family: str) -> None:
    model, ids = random_model(family), canvas()
    engine = engine_of(model, ids)
    plain = engine.forward(SlotSet((0,)), every_row())
    engine.store.tensors["k"][1:, :, :, 6:].fill_(torch.nan)
    engine.store.tensors["v"][1:, :, :, 6:].fill_(torch.nan)
    hidden, rows, row_layers, _ = engine.forward_hooked(
        0,
        torch.arange(2, 6),
        lambda c: torch.arange(WIDTH) if c.layer == 1 else None,
        None,
        NO_ROWS,
    )
    torch.testing.assert_close(hidden, plain[0])
    assert row_layers == 4 + 2 * WIDTH


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_that_join_may_bring_the_inputs_that_the_hook_gives(family: str) -> None:
    model, ids = random_model(family), canvas()
    stored = engine_of(model, ids)
    plain = stored.forward(SlotSet((0,)), every_row())
    engine = engine_of(model, ids, frozenset({"k", "v"}))
    engine.forward(SlotSet((0,)), every_row())
    held = torch.arange(4, WIDTH)  # rows 4 and 5 are there already: theirs are not read
    inputs = stored.store.tensors["x"][1, 0, held].clone()
    inputs[:2] = torch.nan

    def hook(context: LayerContext) -> Rows | None:
        joining = torch.tensor([3, 4, 5, 9, 12])
        return Rows(joining, held, inputs) if context.layer == 1 else None

    hidden, rows, _, _ = engine.forward_hooked(0, torch.arange(2, 6), hook, None, NO_ROWS)
    assert rows.tolist() == [3, 4, 5, 9, 12]
    torch.testing.assert_close(hidden, plain[0, rows])


@pytest.mark.parametrize("family", FAMILIES)
def test_read_outs_are_head_mean_probabilities(family: str) -> None:
    model, ids = random_model(family), canvas()
    wanted = torch.tensor([3, 7])
    readouts = {}
    for kind in ("rows", "mean_map", "column_sums"):
        request = AttentionRequest(kind, layers=(1,))
        _, _, _, found = engine_of(model, ids).forward_hooked(
            0, torch.arange(WIDTH), None, request, wanted
        )
        assert list(found) == [1]
        readouts[kind] = found[1]
    assert readouts["mean_map"].shape == (WIDTH, WIDTH)
    torch.testing.assert_close(readouts["mean_map"].sum(-1), torch.ones(WIDTH))
    torch.testing.assert_close(readouts["rows"], readouts["mean_map"][wanted])
    torch.testing.assert_close(readouts["column_sums"], readouts["mean_map"].sum(0))


@pytest.mark.parametrize("family", FAMILIES)
def test_read_outs_may_keep_the_heads_and_leave_padding_out(family: str) -> None:
    model, ids = random_model(family), canvas()
    plain = engine_of(model, ids)
    padded = Engine(model, torch.cat([ids[:, :3] * 0, ids], dim=1), [3], EVERYTHING)
    request = AttentionRequest("head_rows", layers=(-1,))
    wanted = torch.tensor([3, 7])
    found = plain.forward_hooked(0, torch.arange(WIDTH), None, request, wanted)[3]
    shifted = padded.forward_hooked(0, torch.arange(WIDTH) + 3, None, request, wanted + 3)[3]
    assert list(found) == list(shifted) == [2]
    assert found[2].shape == (4, 2, WIDTH)
    torch.testing.assert_close(shifted[2], found[2])
    keys, queries = plain.store.tensors["k"][2, 0], plain.store.tensors["q"][2, 0, wanted]
    keys = keys.repeat_interleave(4 // model.shape.kv_heads, dim=0)
    scores = queries.view(2, 4, 8).transpose(0, 1) @ keys.transpose(1, 2) / 8**0.5
    torch.testing.assert_close(found[2], scores.softmax(-1))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_hook_may_ask_for_the_queries_of_any_hidden_vectors(family: str) -> None:
    model, ids = random_model(family), canvas()
    rows = torch.tensor([2, 5, 6])
    seen: list[bool] = []

    def hook(context: LayerContext) -> None:
        torch.testing.assert_close(context.queries(context.x, context.rows), context.q)
        plain = context.queries(context.x, None)
        at_zero = context.queries(context.x, torch.zeros(3, dtype=torch.long))
        torch.testing.assert_close(plain, at_zero)
        assert not torch.allclose(plain, context.q)
        seen.append(context.is_last)

    engine = engine_of(model, ids)
    engine.forward(SlotSet((0,)), every_row())
    engine.forward_hooked(0, rows, hook, None, NO_ROWS)
    assert seen == [False, False, True]


@pytest.mark.parametrize("family", FAMILIES)
def test_keys_before_rotation_are_stored_when_asked_for(family: str) -> None:
    model, ids = random_model(family), canvas()
    engine = engine_of(model, ids)
    engine.forward(SlotSet((0,)), every_row())
    unrotated = engine.store.tensors["k_unrotated"][:, 0]
    table = model.rotation_table(WIDTH)
    rotated = layers.rotate(unrotated, layers.Rotation(table.cos[None], table.sin[None]))
    torch.testing.assert_close(rotated, engine.store.tensors["k"][:, 0])
    assert not torch.allclose(unrotated, rotated)


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_changes_no_row(family: str) -> None:
    model, ids = random_model(family), canvas()
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), ids], dim=1)
    engine = Engine(model, padded, [3], EVERYTHING)
    hidden = engine.forward(SlotSet((0,)), RowSet.of_span(0, WIDTH + 3, 1, torch.device("cpu")))
    plain = engine_of(model, ids).forward(SlotSet((0,)), every_row())
    torch.testing.assert_close(hidden[:, 3:], plain)
