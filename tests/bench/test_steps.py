from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from building import decode_config, random_model

from dllmx.bench import steps as steps_module
from dllmx.bench.floors import Machine
from dllmx.bench.forced import UNCERTAIN_EVERY, forced_session
from dllmx.bench.steps import (
    BareForwards,
    Round,
    RowWatch,
    StepRows,
    StepTimes,
    kind_reports,
    paired_round,
)
from dllmx.config.schema import RunConfig
from dllmx.decode.session import Session
from dllmx.engine.engine import Engine

BLOCKS = {"name": "blocks", "gen_length": 32, "block_length": 8}
FULL = {"name": "full", "gen_length": 32}


def polestar() -> RunConfig:
    return decode_config(BLOCKS, {"name": "polestar"}, {"name": "drift"})


def session_of(config: RunConfig, tokens: float, family: str = "llada") -> Session:
    return forced_session(random_model(family), config, 20, tokens)


def finish(session: Session) -> Session:
    while session.step():
        pass
    return session


@pytest.mark.parametrize(("tokens", "steps"), [(1, 32), (2, 16), (3, 11), (3.67, 9), (100, 4)])
def test_the_schedule_is_kept_over_the_ends_of_blocks(tokens: float, steps: int) -> None:
    config = decode_config(BLOCKS, {"name": "dual"}, {"name": "threshold"})
    session = finish(session_of(config, tokens))
    records = session.sequences[0].records
    assert sum(len(record.commit) for record in records) == 32
    assert len(records) == steps
    assert not any(record.forced for record in records)


@pytest.mark.parametrize("cache", ["none", "archer"])
def test_a_rule_that_re_masks_does_not_slow_the_schedule(cache: str) -> None:
    session = finish(session_of(decode_config(FULL, {"name": cache}, {"name": "saber"}), 4))
    assert len(session.sequences[0].records) == 8
    assert session.sequences[0].counters.remasks == 0


def test_entropies_follow_the_schedule() -> None:
    sliding = {"name": "sliding", "gen_length": 48, "window": 8}
    cache = {"name": "entropycache", "recent": 8}
    session = finish(session_of(decode_config(sliding, cache, {"name": "threshold"}), 1))
    full = [i for i, record in enumerate(session.sequences[0].records) if record.full]
    assert full == [0, UNCERTAIN_EVERY, 2 * UNCERTAIN_EVERY]


def test_refreshes_fire_as_often_as_tokens_are_decoded() -> None:
    records = finish(session_of(polestar(), 1)).sequences[0].records
    reasons = [record.reason for record in records[:8]]
    assert reasons == ["entry", *["block"] * 3, "refresh: cumulative", *["block"] * 3]


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_the_rows_of_a_refresh_are_those_that_the_engine_counts(family: str) -> None:
    watch = RowWatch(session_of(polestar(), 2, family))
    layers, counted = 3, 0
    kinds = set()
    while (record := watch.step()) is not None:
        rows = watch.rows_of(record)
        counters = watch.session.sequences[0].counters
        assert sum(rows.counts(layers)) == counters.row_layers - counted
        counted = counters.row_layers
        kinds.add(steps_module.kind_of(record.full, bool(rows.by_layer), record.reason))
    assert kinds == {"full", "window entry", "refresh", "partial"}


def test_a_bare_forward_computes_the_given_rows_at_each_layer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bare = BareForwards(session_of(polestar(), 1))
    by_layer = tuple(torch.arange(20, 20 + count) for count in (4, 9, 6))
    forward = bare.prepare(StepRows(52, by_layer[0], by_layer, 3))
    seen: list[int] = []
    original = Engine.forward

    def counting(engine: Engine, slots: object, rows: object, *rest: object) -> torch.Tensor:
        seen.append(rows.count)  # type: ignore[attr-defined]
        return original(engine, slots, rows, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Engine, "forward", counting)
    forward()
    assert seen == [4, 9, 6]


def test_the_ratio_counts_an_unpaired_step_as_its_kinds_mean() -> None:
    pairs = [("full", 4.0, 2.0), ("full", 4.0, None), ("partial", 1.0, 1.0)]
    steps = [StepTimes(kind, 8, step, bare, step / 2) for kind, step, bare in pairs]
    assert Round(steps).ratio == pytest.approx(9 / 5)
    full, partial = kind_reports([Round(steps), Round(steps)])
    assert (full.kind, full.steps, full.ratio, full.floor_ratio) == ("full", 2, 2.0, 2.0)
    assert (partial.steps, partial.bare_ms) == (1, 1000.0)


def test_steps_can_be_cut_short_and_left_unpaired() -> None:
    config = decode_config(BLOCKS, {"name": "dual"}, {"name": "threshold"})
    bare = BareForwards(session_of(config, 4))
    machine = Machine(1e12, 1e9)
    found = paired_round(
        session_of(config, 4), bare, lambda kind, n: kind == "full", machine, most_steps=2
    )
    assert [step.kind for step in found.steps] == ["full", "partial"]
    assert found.steps[0].bare is not None
    assert found.steps[1].bare is None
    assert found.steps[1].floor is not None
    assert found.decisions is not None
    assert 0 < found.decisions < found.seconds


def test_a_policy_of_ones_own_with_a_hook_that_changes_nothing_has_plain_steps() -> None:
    config = replace(polestar(), cache=replace(polestar().cache, tau_upd=1e9))
    found = paired_round(session_of(config, 4), BareForwards(session_of(config, 4)))
    assert {step.kind for step in found.steps} == {"full", "window entry", "partial"}
