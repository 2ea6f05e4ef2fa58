"""The plain forward with a closed block."""

from __future__ import annotations

import pytest
import torch
from building import random_model

IDS = torch.tensor([[5, 7, 11, 59, 59, 3, 2, 8]])


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_rows_outside_a_closed_block_do_not_see_it(family: str) -> None:
    model = random_model(family)
    closed = torch.tensor([[False] * 3 + [True] * 3 + [False] * 2])
    changed = IDS.clone()
    changed[0, 3:6] = torch.tensor([21, 22, 23])
    before, after = (model.forward_logits(ids, None, closed)[0] for ids in (IDS, changed))
    rows = [1, 2, 7] if family == "llada" else [1, 2, 3]
    torch.testing.assert_close(before[rows], after[rows])
    assert not torch.allclose(before[4], after[4])


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_rows_inside_a_closed_block_see_everything(family: str) -> None:
    model = random_model(family)
    closed = torch.tensor([[False] * 3 + [True] * 3 + [False] * 2])
    changed = IDS.clone()
    changed[0, 0] = 30
    before, after = (model.forward_logits(ids, None, closed)[0] for ids in (IDS, changed))
    assert not torch.allclose(before[4], after[4])


def test_closing_nothing_or_everything_changes_nothing() -> None:
    model = random_model("llada")
    plain = model.forward_logits(IDS)
    visible = torch.ones_like(IDS, dtype=torch.bool)
    for closed in (torch.zeros_like(visible), visible):
        torch.testing.assert_close(model.forward_logits(IDS, visible, closed), plain)
