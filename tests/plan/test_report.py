from __future__ import annotations

import pytest

from dllmx.config.compose import compose, validate
from dllmx.plan.report import plan_schedule

CONFIG = validate(
    compose(
        [
            "model=llada",
            "hardware=a100-80gb",
            "policy=polestar",
            "task.gen_length=256",
            "task.block_length=32",
        ]
    )
)


def test_a_published_figure_stands_beside_the_floor_at_its_own_tpf() -> None:
    plan = plan_schedule(CONFIG, 64, [2.0, 3.67])
    floors = dict(zip([(f.place, f.benchmark) for f in plan.figures], plan.floors, strict=True))
    slow, fast = (cost.tokens_per_second for cost in plan.costs)
    assert floors["Table 1", "GSM8K"] == fast
    assert slow < floors["Table 6", "MBPP"] < floors["Table 1", "HumanEval"] < fast
    assert [cost.steps for cost in plan.costs] == [128, 70]
    assert sum(kind.steps for kind in plan.kinds) == 198
    assert plan.length == 320
    assert plan.store_bytes == 320 * 524_288
    assert plan.fits
    assert len(plan.assumptions) == 5


def test_without_published_figures_nothing_is_said_of_them() -> None:
    config = validate(compose(["model=llada", "hardware=h100", "policy=polestar"]))
    plan = plan_schedule(config, 8, [4.0])
    assert list(plan.figures) == list(plan.floors) == []
    assert len(plan.assumptions) == 4
    assert plan.to_dict()["decodes"][0]["tokens_per_forward"] == pytest.approx(4.0)
