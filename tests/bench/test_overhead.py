from __future__ import annotations

import json
from pathlib import Path

import pytest
from building import decode_config, random_model

from dllmx.bench.overhead import measure_overhead
from dllmx.cli.bench import with_defaults
from dllmx.cli.main import run_command_line
from dllmx.errors import ConfigError

BLOCKS = {"name": "blocks", "gen_length": 16, "block_length": 8, "steps": 8}


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_the_report_counts_the_steps_of_the_decode(family: str) -> None:
    config = decode_config(BLOCKS, {"name": "dual"}, {"name": "quota"})
    done: list[int] = []
    report = measure_overhead(random_model(family), config, 20, 2, done.append)
    assert (report.steps, report.full_steps, report.rounds) == (8, 2, 2)
    assert done == [1, 2]
    assert report.ratio > 0
    assert 0 < report.decision_share < 1
    assert 0 < report.outside_share < 1


def test_a_policy_inside_the_forward_is_held_against_the_rows_that_it_chose() -> None:
    blocks = {"name": "blocks", "gen_length": 16, "block_length": 8}
    config = decode_config(blocks, {"name": "polestar"}, {"name": "drift"})
    report = measure_overhead(random_model("llada"), config, 20, 1, print)
    assert report.ratio > 0
    assert report.ratio_partial_steps is not None
    assert 0 < report.decision_share < 1


def test_guidance_is_refused() -> None:
    config = decode_config(BLOCKS | {"guidance": 1.0}, {"name": "none"}, {"name": "quota"})
    with pytest.raises(ConfigError, match="sampler.guidance=0"):
        measure_overhead(random_model("llada"), config, 4, 1, print)


def test_a_method_of_ones_own_replaces_the_default_schedule() -> None:
    assert "sampler.steps=32" in with_defaults([])
    assert "sampler.steps=32" not in with_defaults(["policy=parallel"])
    assert "model=random-100m" not in with_defaults(["model=tiny-llada"])


def test_the_command_writes_what_it_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["model.layers=1", "model.shape.d_model=96", "model.shape.mlp_hidden_size=32"]
    lengths = ["prompt_length=8", "rounds=1", "sampler.gen_length=32", "sampler.steps=8"]
    arguments = ["bench", "overhead", *small, *lengths, f"output={tmp_path}"]
    assert run_command_line(arguments) == 0
    assert "decode / bare forwards" in capsys.readouterr().out
    (written,) = (tmp_path / "bench").glob("overhead-*.json")
    assert json.loads(written.read_text())["report"]["steps"] == 8


@pytest.mark.parametrize(
    "arguments",
    [
        ["bench"],
        ["bench", "speed"],
        ["bench", "overhead", "rounds=0"],
        ["bench", "overhead", "task=x"],
    ],
)
def test_bad_arguments_exit_with_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(arguments) == 2
    assert capsys.readouterr().err.startswith("error: ")
