from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from seeing import masked_view, prediction_of

from dllmx.commits.quota import step_quota
from dllmx.config import parts
from dllmx.engine.interface import CommitRule
from dllmx.errors import ConfigError


def rule(name: str, **values: Any) -> CommitRule:
    module = parts.load("commit", name)
    made: CommitRule = module.Commit(module.Config(name=name, **values))
    return made


def committed(made: CommitRule, confidence: list[float], **view: Any) -> list[int]:
    """Positions that the rule commits, relative to the block's start, sorted."""
    decision = made.select(masked_view(len(confidence), **view), prediction_of(confidence))
    assert (decision.tokens - 10).tolist() == (decision.positions - 2).tolist()
    return sorted((decision.positions - 2).tolist())


@given(masks=st.integers(0, 200), steps=st.integers(1, 64))
def test_quotas_share_out_the_masks_with_the_rest_first(masks: int, steps: int) -> None:
    quotas = [step_quota(masks, steps, i) for i in range(steps)]
    assert sum(quotas) == masks
    assert quotas == sorted(quotas, reverse=True)
    assert max(quotas) - min(quotas) <= 1


def test_quota_commits_the_surest_of_its_share() -> None:
    assert committed(rule("quota"), [0.1, 0.9, 0.5, 0.8], steps=2) == [1, 3]
    assert committed(rule("quota"), [0.1, 0.9, 0.5], steps=2, block_step=1) == [1]


def test_quota_may_rank_by_entropy() -> None:
    decision = rule("quota", score="entropy").select(
        masked_view(3, steps=3), prediction_of([0.9, 0.5, 0.4], entropy=[0.3, 0.1, 0.2])
    )
    assert decision.positions.tolist() == [3]


def test_random_quota_depends_on_the_seed_only() -> None:
    made = rule("quota", score="random")
    draws = [committed(made, [0.5] * 8, steps=8, seed=seed) for seed in (1, 1, 2, 3, 4)]
    assert draws[0] == draws[1]
    assert len({tuple(draw) for draw in draws}) > 1


def test_threshold_commits_all_that_reach_it() -> None:
    assert committed(rule("threshold", threshold=0.8), [0.8, 0.79, 0.95]) == [0, 2]


def test_threshold_always_commits_the_surest() -> None:
    assert committed(rule("threshold"), [0.2, 0.4, 0.3]) == [1]


def test_threshold_with_a_forced_first_token_ignores_confidence_at_entry() -> None:
    made = rule("threshold", first_token="forced")
    assert committed(made, [0.01, 0.99, 0.98]) == [0]
    assert committed(made, [0.01, 0.99, 0.98], block_step=1) == [1, 2]


def test_factor_stops_at_the_first_rank_below_its_limit() -> None:
    # limits of ranks 1.. with f = 1: always, 2/3, 3/4, 4/5
    assert committed(rule("factor"), [0.9, 0.7, 0.74, 0.99]) == [0, 3]
    assert committed(rule("factor"), [0.9, 0.76, 0.7, 0.99]) == [0, 1, 3]


def test_factor_as_released_commits_a_last_rank_that_fails() -> None:
    confidence = [0.9, 0.1]
    assert committed(rule("factor"), confidence) == [0]
    assert committed(rule("factor", compat="fast-dllm"), confidence) == [0, 1]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.sampled_from(["none", "fast-dllm"]))
def test_factor_commits_a_run_of_the_surest(confidence: list[float], compat: str) -> None:
    chosen = committed(rule("factor", compat=compat), confidence)
    assert chosen
    worst = min(confidence[i] for i in chosen)
    assert all(c <= worst for i, c in enumerate(confidence) if i not in chosen)


def test_dream_commits_nothing_first_and_two_last_at_one_step_a_token() -> None:
    made, left, counts = rule("dream", algorithm="maskgit_plus"), 64, []
    for step in range(64):
        chosen = committed(made, [0.5] * left, steps=64, block_step=step) if left else []
        counts.append(len(chosen))
        left -= len(chosen)
    assert counts == [0] + [1] * 62 + [2]


def test_dream_origin_commits_whatever_is_left_at_the_last_step() -> None:
    made = rule("dream", algorithm="origin")
    assert committed(made, [0.1, 0.2], steps=4, block_step=3) == [0, 1]


def test_budget_threshold_carries_over_what_it_rejects() -> None:
    made = rule("budget-threshold", threshold=0.5)
    assert committed(made, [0.4, 0.3, 0.2, 0.1], steps=2) == [0]  # budget 2, one rejected
    # One more of the budget of 2 + 1 carried over than the schedule alone would allow.
    view, prediction = masked_view(3, steps=2, block_step=1), prediction_of([0.9, 0.8, 0.7])
    assert made.select(view, prediction).positions.numel() >= 2


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("threshold", {"threshold": 1.5}, r"commit.threshold=1.5 .*\[0.0, 1.0\]"),
        ("quota", {"score": "best"}, "commit.score=best .*confidence, margin, entropy, random"),
        ("factor", {"factor": -1.0}, "commit.factor=-1.0"),
        ("dream", {"algorithm": "greedy"}, "commit.algorithm=greedy"),
        ("dream", {"algorithm": "origin", "algorithm_temperature": 0.1}, "not read by"),
    ],
)
def test_wrong_values_are_refused(name: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        rule(name, **values)


def test_equal_scores_are_ordered_as_topk_orders_the_canvas() -> None:
    made = rule("quota")
    chosen = committed(made, [0.5] * 20, steps=5)
    row = torch.full((22,), -torch.inf, dtype=torch.float64)
    row[2:] = 0.5
    assert chosen == sorted((row.topk(4).indices - 2).tolist())
