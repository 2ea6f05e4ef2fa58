from __future__ import annotations

from typing import Any

import pytest
from building import decode_config, random_model
from reference_runs import commits_of, recorded, recorded_names, reference_model

from dllmx.decode.decoder import Decoded, Decoder, Request
from dllmx.errors import ConfigError

FAMILIES = ("llada", "dream")
READINGS = [n for n in recorded_names("trajectories-papers") if n.startswith("entropycache")]
PROMPT = [3, 14, 15, 9, 26, 5]


def decode(family: str, tau: float | None, recent: int = 4, **cache: Any) -> Decoded:
    config = decode_config(
        {"name": "sliding", "gen_length": 24, "window": 8},
        {"name": "entropycache", "tau": tau, "recent": recent} | cache,
        {"name": "threshold", "threshold": 0.5},
    )
    return Decoder(random_model(family), config).decode([Request("x", PROMPT, seed=0)])[0]


@pytest.mark.parametrize("name", READINGS)
def test_decode_repeats_the_recorded_reading_of_the_paper(name: str) -> None:
    found = recorded("trajectories-papers", name)
    settings = found["settings"]
    tau = None if settings["tau"] in ("inf", float("inf")) else settings["tau"]
    config = decode_config(
        {"name": "sliding", "gen_length": 48, "window": settings["window"]},
        {"name": "entropycache", "tau": tau, "recent": settings["k"]},
        {"name": "threshold", "threshold": settings["threshold"]},
    )
    decoder = Decoder(reference_model(found["model"]), config)
    for run in found["runs"]:
        decoded = decoder.decode([Request("x", run["prompt_ids"], seed=0)])[0]
        assert [step.commit for step in decoded.steps] == [commits_of(s) for s in run["steps"]]
        rows = ["all" if step.full else step.row_positions for step in decoded.steps]
        assert rows == [step["rows"] for step in run["steps"]]
        assert decoded.counters.recompute_ratio == pytest.approx(run["recompute_ratio"], abs=1e-3)


def test_seven_readings_are_recorded() -> None:
    assert len(READINGS) == 7


@pytest.mark.parametrize("family", FAMILIES)
def test_a_threshold_of_zero_equals_no_cache(family: str) -> None:
    cached = decode(family, tau=0.0)
    config = decode_config(
        {"name": "sliding", "gen_length": 24, "window": 8},
        {"name": "none"},
        {"name": "threshold", "threshold": 0.5},
    )
    plain = Decoder(random_model(family), config).decode([Request("x", PROMPT, seed=0)])[0]
    assert cached.output_ids == plain.output_ids
    assert cached.counters.partial == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_without_a_threshold_only_the_first_forward_is_full(family: str) -> None:
    decoded = decode(family, tau=None)
    assert decoded.counters.full == 1
    assert all(step.rows <= 8 + 4 + 8 for step in decoded.steps[1:])


@pytest.mark.parametrize("family", FAMILIES)
def test_partial_forwards_compute_the_window_and_the_newest_commits(family: str) -> None:
    decoded = decode(family, tau=None, recent=2)
    first, second = decoded.steps[0], decoded.steps[1]
    start = len(PROMPT)
    committed = [position for position, _ in first.commit]
    masks = [p for p in range(start, start + 24) if p not in committed][:8]
    wanted = set(masks) | set(sorted(committed)[-2:])
    if family == "dream":
        wanted |= {position - 1 for position in masks}
    assert second.row_positions == sorted(wanted)


def test_values_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"cache\.tau=-1\.0"):
        decode("llada", tau=-1.0)
    with pytest.raises(ConfigError, match=r"cache\.recent=-1"):
        decode("llada", tau=None, recent=-1)
