from __future__ import annotations

from typing import Any

import pytest
import torch
from building import decode_config
from seeing import MASK, view_of
from torch import Tensor

from dllmx.commits.drift import Commit, Config
from dllmx.engine.interface import Block, Prediction, View
from dllmx.errors import ConfigError

BLOCK = Block(1, 4, 8, 4, 1)


def view(block_step: int = 1, drift: list[float] | None = None, **signals: Any) -> View:
    """Prompt of two, a finished block of two, the block [4, 8) and four masks behind it."""
    made = view_of([1, 2, 3, 4] + [MASK] * 8, 2, BLOCK, block_step)
    values = None if drift is None else torch.tensor(drift)
    made.signals.update({"drift": values, "packet": torch.arange(0), **signals})
    return made


def prediction(confidence: list[float]) -> Prediction:
    """Predictions at 4, 5, ...; those of the block are eligible."""
    count = len(confidence)
    positions = torch.arange(4, 4 + count)
    values = torch.tensor(confidence, dtype=torch.float64)
    return Prediction(positions, positions + 10, values, eligible=positions < 8)


def committed(rule: Commit, seen: View, confidence: list[float]) -> list[int]:
    decision = rule.select(seen, prediction(confidence))
    assert torch.equal(decision.tokens, decision.positions + 10)
    return decision.positions.tolist()


def rule(**values: Any) -> Commit:
    return Commit(Config("drift", **values))


def test_the_gate_asks_for_more_drift_the_less_sure_a_token_is() -> None:
    # gates: 10 (0.9 - c)^2 = 0.1, 0.4, 0.9, 1.6; the surest is always committed
    confidence = [0.8, 0.7, 0.6, 0.5]
    assert committed(rule(), view(drift=[0.0, 0.41, 0.89, 1.61]), confidence) == [4, 5, 7]
    assert committed(rule(alpha=20.0), view(drift=[0.0, 0.41, 0.89, 1.61]), confidence) == [4]


def test_drift_counts_against_the_mean_of_the_last_steps() -> None:
    made = rule(history=2)
    for drift in ([9.0, 9.0, 9.0, 9.0], [0.0, 1.0, 0.0, 0.0], [0.0, 3.0, 0.0, 0.0]):
        made.select(view(drift=drift), prediction([0.1] * 4))
    decision = made.select(view(drift=[0.0, 3.0, 0.0, 0.0]), prediction([0.1] * 4))
    assert decision.note["delta"] == [0.0, 1.0, 0.0, 0.0]
    assert decision.note["drift"] == [0.0, 3.0, 0.0, 0.0]


def test_without_history_delta_is_the_drift() -> None:
    made = rule(history=0)
    for _ in range(2):
        decision = made.select(view(drift=[0.0, 2.0, 0.0, 0.0]), prediction([0.1] * 4))
    assert decision.note["delta"] == [0.0, 2.0, 0.0, 0.0]


def test_a_block_entry_commits_by_confidence_and_forgets_the_history() -> None:
    made = rule()
    made.select(view(drift=[5.0] * 4), prediction([0.1] * 4))
    assert committed(made, view(block_step=0, drift=None), [0.95, 0.1, 0.9, 0.2, 0.99]) == [4, 6]
    decision = made.select(view(drift=[1.0] * 4), prediction([0.1] * 4))
    assert decision.note["delta"] == [1.0] * 4


def test_bounds_of_the_released_code_keep_unsure_tokens_and_wild_drifts_out() -> None:
    confidence, drift = [0.85, 0.7, 0.71, 0.8], [0.0, 1.9, 1.9, 2.0]
    assert committed(rule(), view(drift=drift), confidence) == [4, 5, 6, 7]
    bounded = rule(early_minimum=0.7, delta_maximum=2.0)
    assert committed(bounded, view(drift=drift), confidence) == [4, 6]


def test_an_early_minimum_at_the_threshold_leaves_confidence_alone() -> None:
    drift = [50.0] * 4
    assert committed(rule(early_minimum=0.9), view(drift=drift), [0.89, 0.5, 0.1, 0.2]) == [4]


@pytest.mark.parametrize(
    ("name", "expected"), [("static", [4]), ("raw", [4, 5, 6]), ("delta", [4, 6])]
)
def test_the_variants_of_figure_6b(name: str, expected: list[int]) -> None:
    made = rule(rule=name, constant=1.0, suffix_threshold=None)
    made.select(view(drift=[0.0, 1.0, 0.0, 0.0]), prediction([0.2, 0.1, 0.1, 0.1]))
    drift = [0.0, 1.5, 1.0, 0.9]
    assert committed(made, view(drift=drift), [0.9, 0.1, 0.1, 0.1]) == expected


def packet(*positions: int) -> Tensor:
    return torch.tensor(positions)


def test_behind_the_block_only_sure_tokens_of_the_packet_are_committed() -> None:
    confidence = [0.95, 0.1, 0.1, 0.1, 0.95, 0.9, 0.8, 0.99]
    seen = view(drift=[0.0] * 4, packet=packet(2, 3, 9, 10, 11))
    assert committed(rule(), seen, confidence) == [4, 9, 11]
    assert committed(rule(suffix_threshold=0.75), seen, confidence) == [4, 9, 10, 11]
    assert committed(rule(suffix_threshold=None), seen, confidence) == [4]


def test_in_shifted_models_a_packet_row_speaks_for_the_next_position() -> None:
    confidence = [0.95, 0.1, 0.1, 0.1, 0.95, 0.95, 0.95, 0.95]
    seen = view(drift=[0.0] * 4, packet=packet(8, 9))
    seen._state.shifted = True
    assert committed(rule(), seen, confidence) == [4, 9, 10]


def test_a_finished_block_may_still_gain_tokens_behind_it() -> None:
    seen = view(drift=[0.0] * 4, packet=packet(9))
    found = prediction([0.9] * 6)
    only_behind = found.restricted(found.positions >= 8)
    assert rule().select(seen, only_behind).positions.tolist() == [9]


def test_signals_are_asked_for_only_when_they_are_read() -> None:
    assert rule().needs.reads == {"drift", "packet"}
    assert rule(rule="static").needs.reads == {"packet"}
    assert rule(suffix_threshold=None).needs.reads == {"drift"}
    assert rule(rule="static", suffix_threshold=None).needs.reads == set()
    assert rule(suffix_threshold=None).needs.read == "block_masks"


@pytest.mark.parametrize("cache", ["none", "dual", "prefix"])
def test_a_cache_that_measures_no_drift_is_refused_by_name(cache: str) -> None:
    blocks = {"name": "blocks", "gen_length": 8, "block_length": 8}
    with pytest.raises(ConfigError, match=f"commit=drift needs .*cache={cache} does not"):
        decode_config(blocks, {"name": cache}, {"name": "drift"})


@pytest.mark.parametrize(
    "values", [{"rule": "all"}, {"threshold": 1.5}, {"history": -1}, {"suffix_threshold": 2.0}]
)
def test_values_out_of_range_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"commit.{next(iter(values))}="):
        rule(**values)
