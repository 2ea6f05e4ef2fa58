from __future__ import annotations

import pytest
from building import random_model
from hypothesis import given
from hypothesis import strategies as st

from dllmx.bench.forced import forced_session
from dllmx.bench.steps import ENTRY, FULL, PARTIAL, REFRESH
from dllmx.config.compose import compose, validate
from dllmx.config.schema import RunConfig
from dllmx.errors import ConfigError
from dllmx.plan.steps import PlannedStep, planned_steps, traced_steps

LLADA, DREAM = random_model("llada"), random_model("dream")


def config_of(policy: str, *overrides: str) -> RunConfig:
    lengths = ("task.gen_length=32", "task.block_length=8", "logger=none")
    return validate(compose([f"policy={policy}", *lengths, *overrides]))


def kinds(steps: list[PlannedStep]) -> list[str]:
    return [step.kind for step in steps]


def test_without_a_cache_every_step_computes_every_row() -> None:
    steps = planned_steps(LLADA.shape, config_of("baseline"), 20, 2.0)
    assert len(steps) == 16
    assert {(step.kind, step.rows, step.keys) for step in steps} == {(FULL, (52,), 52)}
    assert [step.predicted for step in steps[:4]] == [8, 6, 4, 2]


@pytest.mark.parametrize(("model", "rows"), [(LLADA, {8}), (DREAM, {9})])
def test_a_dual_cache_computes_the_block_after_its_entry(model, rows) -> None:
    steps = planned_steps(model.shape, config_of("fast-dllm"), 20, 4.0)
    assert kinds(steps) == [FULL, PARTIAL] * 4
    assert {step.rows[0] for step in steps if step.kind == PARTIAL} == rows


def test_polestar_enters_every_other_block_by_its_window_and_refreshes_half_of_it() -> None:
    steps = planned_steps(LLADA.shape, config_of("polestar"), 40, 2.0)
    entries = [step for step in steps if step.kind in (FULL, ENTRY)]
    assert kinds(entries) == [FULL, ENTRY, FULL, ENTRY]
    assert {step.rows for step in entries if step.kind == FULL} == {(72,) * 4}
    assert entries[1].rows == (8 + 24,) * 4  # the block, two before it and one behind
    assert entries[3].rows == (8 + 16,) * 4  # nothing behind the last
    refreshes = [step for step in steps if step.kind == REFRESH]
    assert len(refreshes) == 4
    assert all(len(step.rows) == 4 for step in refreshes)
    assert all(8 < count <= 32 for step in refreshes for count in step.rows)


@pytest.mark.parametrize("policy", ["parallel", "fast-dllm-prefix", "entropycache", "archer"])
def test_the_rows_are_those_that_a_larger_model_computes(policy: str) -> None:
    config = config_of(policy)
    session = forced_session(LLADA, config, 20, 3.0)
    while session.step():
        pass
    records = session.sequences[0].records
    steps = planned_steps(LLADA.shape, config, 20, 3.0)
    assert [step.rows[0] for step in steps] == [record.rows for record in records]
    assert [step.predicted for step in steps] == [record.predicted for record in records]


def test_guidance_is_refused() -> None:
    with pytest.raises(ConfigError, match="sampler.guidance=0"):
        planned_steps(LLADA.shape, config_of("baseline", "sampler.guidance=1.0"), 20, 1.0)


@given(st.lists(st.integers(1, 99), min_size=1, max_size=6), st.integers(1, 40))
def test_rows_are_stretched_over_any_number_of_layers(rows: list[int], layers: int) -> None:
    stretched = PlannedStep(FULL, tuple(rows), 99, 1).rows_of(layers)
    assert len(stretched) == layers
    assert set(stretched) <= set(rows)
    assert stretched[-1] == rows[-1]
    if layers > 1:
        assert stretched[0] == rows[0]
    if layers == len(rows):
        assert stretched == rows


def test_a_traced_step_counts_its_block_with_each_layers_packet() -> None:
    common = {"remask": [], "filled": [], "block": [4, 8]}
    entry = {
        "prompt_ids": [1, 2, 3, 4],
        "steps": [
            {**common, "full": True, "rows": 12, "reason": "entry", "note": {},
             "commit": [[4, 9], [5, 9], [9, 9]]},
            {**common, "full": False, "rows": [4, 5, 6, 7], "reason": "refresh: step",
             "note": {"packets": [[2, 3, 8], []]}, "commit": [[6, 9]], "remask": [4]},
            {**common, "full": False, "rows": [4, 5, 6, 7], "reason": "block", "note": {},
             "commit": [[7, 9]]},
            {**common, "full": False, "rows": [2, 3, 4], "reason": "window entry", "note": {},
             "commit": [], "block": [8, 12]},
        ],
    }  # fmt: skip
    assert list(traced_steps(entry, 8)) == [
        PlannedStep(FULL, (12,), 12, 4),
        PlannedStep(REFRESH, (7, 4), 12, 2),
        PlannedStep(PARTIAL, (4,), 12, 2),
        PlannedStep(ENTRY, (3,), 12, 3),
    ]
