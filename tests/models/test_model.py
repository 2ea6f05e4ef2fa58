"""The plain forward of a block against stored rows, held against the engine's dual cache."""

from __future__ import annotations

import pytest
import torch
from building import random_model

from dllmx.engine.engine import Engine
from dllmx.engine.rows import RowSet, SlotSet

STORED = torch.tensor([[5, 7, 11, 59, 59, 59, 59, 59]])
IDS = torch.tensor([[5, 7, 11, 59, 21, 59, 59, 59]])
BLOCK = torch.tensor([[False] * 3 + [True] * 3 + [False] * 2])
VISIBLE = torch.ones_like(BLOCK)


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_block_logits_are_those_of_a_dual_cache(family: str) -> None:
    model = random_model(family)
    engine = Engine(model, STORED.clone(), [0], frozenset({"k", "v"}))
    everything = RowSet.of_span(0, 8, 1, torch.device("cpu"))
    engine.forward(SlotSet((0,)), everything)
    engine.canvas[:] = IDS
    lo = 3 - int(model.shape.shifted)
    rows = RowSet.of_span(lo, 6, 1, torch.device("cpu"))
    raw = model.head_logits(engine.forward(SlotSet((0,)), rows))[0]
    logits = model.forward_block_logits(STORED, IDS, BLOCK, VISIBLE)[0]
    torch.testing.assert_close(logits[3:6], raw[:3])


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_other_rows_give_the_logits_of_what_is_stored(family: str) -> None:
    model = random_model(family)
    plain = model.forward_logits(STORED)[0]
    logits = model.forward_block_logits(STORED, IDS, BLOCK, VISIBLE)[0]
    torch.testing.assert_close(logits[[1, 2, 7]], plain[[1, 2, 7]])


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_padding_on_the_left_changes_nothing(family: str) -> None:
    model = random_model(family)
    pads = torch.zeros(1, 2, dtype=torch.long)
    padded = [
        torch.cat([pads.to(values.dtype), values], dim=1)
        for values in (STORED, IDS, BLOCK, VISIBLE)
    ]
    logits = model.forward_block_logits(STORED, IDS, BLOCK, VISIBLE)[0]
    torch.testing.assert_close(model.forward_block_logits(*padded)[0, 3:], logits[1:])
