from __future__ import annotations

from dataclasses import replace

import pytest
from building import decode_config

from dllmx.config.schema import PolicyConfig, RunConfig
from dllmx.errors import ConfigError
from dllmx.runs.report import comparable_key, error_line, failed_report, is_baseline
from dllmx.tasks.tiny_math import Config as TinyMath

SAMPLER = {"name": "blocks", "gen_length": 8, "block_length": 4}


def config(cache: str = "none", commit: str = "quota", policy: str = "baseline") -> RunConfig:
    decoding = decode_config(SAMPLER, {"name": cache}, {"name": commit})
    return replace(decoding, policy=PolicyConfig(policy), task=TinyMath("tiny-math"))


def test_only_the_untouched_baseline_is_the_baseline() -> None:
    assert is_baseline(config())
    assert not is_baseline(config(cache="dual"))
    assert not is_baseline(config(policy="parallel"))
    faster = replace(config(), sampler=replace(config().sampler, steps=4))
    assert not is_baseline(faster)
    assert is_baseline(replace(config(), sampler=replace(config().sampler, steps=8)))


def test_runs_are_comparable_across_policies_but_not_across_seeds() -> None:
    assert comparable_key(config()) == comparable_key(config("dual", "threshold", "fast-dllm"))
    assert comparable_key(config()) != comparable_key(replace(config(), seed=1))


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (ConfigError("two\nlines"), 2, "two lines"),
        (ValueError("odd"), 1, "internal error: ValueError: odd"),
    ],
)
def test_a_failed_job_keeps_its_error_on_one_line(error: Exception, status: int, line: str) -> None:
    report = failed_report(3, ["seed=1"], error)
    assert (report.failed, report.exit_status, report.error) == (True, status, line)
    assert error_line(error) == line
