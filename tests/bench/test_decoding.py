from __future__ import annotations

import pytest
from building import decode_config, random_model

from dllmx.bench import decoding
from dllmx.bench.decoding import MOST_ROUNDS, Setting, decode_peak, measure_policies
from dllmx.bench.floors import Machine
from dllmx.bench.forced import forced_session
from dllmx.bench.overhead import parameter_count
from dllmx.decode.session import Session
from dllmx.errors import ConfigError

BLOCKS = {"name": "blocks", "gen_length": 32, "block_length": 8}
CONFIGS = {
    "baseline": decode_config(BLOCKS, {"name": "none"}, {"name": "quota"}),
    "polestar": decode_config(BLOCKS, {"name": "polestar"}, {"name": "drift"}),
}


def test_every_policy_has_one_round_and_more_where_time_is_left() -> None:
    told: list[tuple[str, int]] = []
    setting = Setting(20, 3)
    model = random_model("llada")
    short = measure_policies(model, CONFIGS, setting, 0, lambda *a: told.append(a))
    assert told == [("baseline", 1), ("polestar", 1)]
    assert [report.rounds for report in short] == [1, 1]
    long = measure_policies(model, CONFIGS, setting, 600, lambda *a: None)
    assert [report.rounds for report in long] == [MOST_ROUNDS] * 2


def test_reports_say_what_was_decoded() -> None:
    setting = Setting(20, 3, Machine(1e12, 1e9))
    baseline, polestar = measure_policies(
        random_model("llada"), CONFIGS, setting, 0, lambda *a: None, peak=lambda start: 7
    )
    assert (baseline.policy, baseline.peak_bytes) == ("baseline", 7)
    assert [kind.kind for kind in baseline.kinds] == ["full"]
    assert baseline.tokens_per_step == pytest.approx(32 / baseline.steps)
    assert {kind.kind for kind in polestar.kinds} == {"full", "window entry", "refresh", "partial"}
    assert polestar.floor_ratio is not None
    assert baseline.decision_share < polestar.decision_share < 1


def test_long_steps_that_are_alike_are_paired_now_and_then() -> None:
    paired = [n for n in range(17) if decoding._sometimes("full", n)]
    assert paired == [0, 1, 2, 3, 4, 8, 12, 16]
    assert all(decoding._sometimes("refresh", n) for n in range(17))


def test_guidance_is_refused() -> None:
    config = decode_config(BLOCKS | {"guidance": 1.0}, {"name": "none"}, {"name": "quota"})
    with pytest.raises(ConfigError, match="sampler.guidance=0"):
        measure_policies(random_model("llada"), {"x": config}, Setting(4, 1), 0, lambda *a: None)


class Counted:
    """Stands in for the counter of memory: remembers that it was open while steps were taken."""

    peak = 1000

    def __init__(self, known: list[object]) -> None:
        assert known == []

    def __enter__(self) -> Counted:
        return self

    def __exit__(self, *error: object) -> None:
        return None


def test_the_peak_is_what_lives_in_a_decode_and_the_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decoding, "LiveStorage", Counted)
    model = random_model("llada")
    started: list[Session] = []

    def start() -> Session:
        started.append(forced_session(model, CONFIGS["baseline"], 20, 1))
        return started[-1]

    assert decode_peak(start) == 1000 + 4 * parameter_count(model)
    assert started[-1].sequences[0].step == decoding.PEAK_STEPS
