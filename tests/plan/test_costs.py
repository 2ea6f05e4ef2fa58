from __future__ import annotations

from dataclasses import replace

import pytest

from dllmx.bench.steps import FULL, PARTIAL, REFRESH
from dllmx.config.compose import compose, validate
from dllmx.errors import ConfigError
from dllmx.plan.costs import Target, decode_cost
from dllmx.plan.report import target_of
from dllmx.plan.steps import PlannedStep


def target(*overrides: str) -> Target:
    return target_of(validate(compose(["model=llada", "hardware=a100-80gb", *overrides])))


def test_a_block_step_of_llada_waits_for_its_weights() -> None:
    weights = 32 * 4096 * (4 * 4096 + 3 * 12288) + 126464 * 4096
    stored = 32 * 2 * 4096 * 1280
    cost = decode_cost(target(), [PlannedStep(PARTIAL, (32,), 1280, 32)], 2)
    (kind,) = cost.kinds
    assert kind.moved == 2 * (weights + stored)
    assert kind.limit == "memory"
    assert kind.milliseconds == pytest.approx(1e3 * kind.moved / 2039e9)
    assert cost.tokens_per_second == pytest.approx(2e3 / kind.milliseconds)


def test_a_full_step_of_llada_waits_for_its_arithmetic() -> None:
    layers = 32 * 4096 * (4 * 4096 + 3 * 12288)
    operations = 2 * 1280 * layers + 32 * 4 * 1280 * 1280 * 4096 + 2 * 32 * 126464 * 4096
    (kind,) = decode_cost(target(), [PlannedStep(FULL, (1280,), 1280, 32)], 1).kinds
    assert kind.operations == pytest.approx(operations)
    assert kind.limit == "arithmetic"
    assert kind.milliseconds == pytest.approx(1e3 * operations / 312e12)


def test_the_seconds_of_a_decode_are_those_of_its_steps() -> None:
    found = target("model=dream", "hardware=h200")
    steps = [
        PlannedStep(FULL, (1280,), 1280, 32),
        PlannedStep(PARTIAL, (33,), 1280, 20),
        PlannedStep(REFRESH, (80, 90, 60, 81), 1280, 44),
        PlannedStep(PARTIAL, (900,), 1280, 3),
    ]
    cost = decode_cost(found, steps, 9)
    assert cost.seconds == pytest.approx(sum(found.floor(step) for step in steps))
    assert [(kind.kind, kind.steps) for kind in cost.kinds] == [
        (FULL, 1),
        (REFRESH, 1),
        (PARTIAL, 2),
    ]
    assert cost.kinds[2].predicted == 11.5
    assert cost.kinds[1].rows == pytest.approx((80 + 13 * 90 + 13 * 60 + 81) / 28)
    assert cost.tokens_per_forward == 9 / 4
    assert cost.steps_of(PARTIAL) == 2


@pytest.mark.parametrize(
    ("name", "parameters", "store"),
    [("llada", 8_015_581_184, 524_288), ("dream", 7_615_616_512, 57_344)],
)
def test_memory_is_every_parameter_and_two_vectors_a_key_head(
    name: str, parameters: int, store: int
) -> None:
    found = target(f"model={name}")
    assert found.weight_bytes == 2 * parameters
    assert found.store_bytes(10) == 10 * store


def test_a_profile_without_peaks_is_refused() -> None:
    with pytest.raises(ConfigError, match="hardware=cpu states no peaks.*hardware=a100-80gb"):
        target("hardware=cpu")
    own = ("hardware=cpu", "hardware.peak_tflops=0.1", "hardware.bandwidth_gbs=20")
    assert target(*own).element == 4


def test_peaks_of_short_numbers_do_not_hold_for_float32() -> None:
    with pytest.raises(ConfigError, match="dtype=float32 is slower.*bfloat16"):
        target("hardware.dtype=float32")


def test_a_faster_gpu_has_lower_floors() -> None:
    step = PlannedStep(PARTIAL, (32,), 1280, 32)
    slow = target()
    fast = replace(slow, machine=target("hardware=h200").machine)
    assert fast.floor(step) == pytest.approx(slow.floor(step) * 2039 / 4800)
