from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dllmx.bench import gpu_check
from dllmx.bench.gpu_check import POLICIES, Budget, Part, dry_settings, gpu_settings, run_gpu_check
from dllmx.config.schema import RunConfig
from dllmx.models.model import Model

PARTS = ("kernels", "tokens", "speed")


def run(seconds: float) -> tuple[dict[str, Any], int]:
    """A dry run on plain kernels, and how often its report was written."""
    written: list[dict[str, Any]] = []
    settings = replace(dry_settings(seconds), kernels=("torch",))
    return run_gpu_check(settings, written.append, lambda line: None), len(written)


def test_without_time_everything_is_skipped_with_a_reason() -> None:
    report, writes = run(1e-9)
    assert writes == 3
    for name in PARTS:
        skipped = report["parts"][name]["skipped"]
        assert skipped
        assert all("s were left" in item["reason"] for item in skipped)
    assert report["failures"] == []


def test_a_part_that_breaks_does_not_stop_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise ValueError("no such kernel")

    monkeypatch.setattr(gpu_check, "_check_kernels", broken)
    monkeypatch.setattr(gpu_check, "_tokens", lambda config, prompts: [[1, 2]])
    report, _ = run(600)
    assert report["failures"] == ["kernels: all of it: ValueError: no such kernel"]
    assert len(report["parts"]["tokens"]["results"]) == 2 * len(POLICIES)
    assert report["parts"]["speed"]["failures"] == []


def test_other_tokens_than_on_the_cpu_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[RunConfig] = []

    def tokens(config: RunConfig, prompts: int) -> list[list[int]]:
        calls.append(config)
        return [[1, 2, 3 if len(calls) == 2 else 4]]

    monkeypatch.setattr(gpu_check, "_tokens", tokens)
    part = Part()
    settings = replace(dry_settings(600), kernels=("torch",))
    gpu_check._check_tokens(settings, Budget.of(600), part, lambda line: None)
    assert len(part.failures) == 1
    assert part.failures[0].startswith("tiny-llada, baseline, kernels=torch: 1 tokens differ")
    assert {config.hardware.dtype for config in calls} == {"float32"}


def test_a_policy_that_breaks_does_not_stop_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(model: Model, config: RunConfig, prompt_length: int, rate: float) -> dict[str, Any]:
        if config.policy.name != "archer":
            raise RuntimeError("out of memory")
        return {"tokens_per_second": 1.0}

    monkeypatch.setattr(gpu_check, "_speed", broken)
    part = Part()
    settings = replace(dry_settings(600), kernels=("torch",), rates=(2.0,))
    gpu_check._measure_speed(settings, Budget.of(600), part, lambda line: None)
    assert [found.get("policy") for found in part.results] == [None, "archer"]
    assert len(part.failures) == len(POLICIES) - 1
    assert "baseline, 2 tokens a step, kernels=torch: RuntimeError: out of memory" in part.failures


def test_a_run_that_would_not_fit_is_skipped() -> None:
    part = Part()
    assert Budget.of(100).fits(part, "a", 50)
    assert not Budget.of(100).fits(part, "b", 150)
    assert part.skipped == [
        {"item": "b", "reason": "100 s of the part's 100 s were left, about 150 s were needed"}
    ]


def test_the_check_itself_is_of_the_real_size() -> None:
    settings = gpu_settings("cuda", 480)
    assert (settings.prompt_length, settings.rates) == (1024, (3.67, 2.0, 1.0))
    assert (settings.sizes.vocab, settings.sizes.width) == (126464, 4096)
    config = gpu_check._config("cpu", "torch", "baseline", settings.large)
    assert (config.model.name, config.model.weights) == ("llada", "random")
    assert (config.sampler.gen_length, config.sampler.block_length) == (256, 32)
