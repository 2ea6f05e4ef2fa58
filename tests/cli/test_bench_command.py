from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from commanding import Command

SMALL = (
    "model.layers=1",
    "model.shape.d_model=96",
    "model.shape.mlp_hidden_size=32",
    "prompt_length=8",
    "gen_length=8",
    "block_length=4",
)


def written(dllmx: Command, name: str) -> dict[str, Any]:
    (path,) = (dllmx.folder / "outputs" / "bench").glob(f"{name}-*.json")
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def test_decode_prints_one_line_a_policy(dllmx: Command) -> None:
    result = dllmx("bench", "decode", "policies=baseline,polestar", "minutes=0", *SMALL)
    assert result.status == 0
    lines = [line.split() for line in result.out.splitlines() if line.strip()]
    assert [line[0] for line in lines[2:]] == ["baseline", "polestar"]
    assert "decode/bare" in lines[0]
    assert "floor" not in lines[0]  # the profile states no peaks
    content = written(dllmx, "decode")
    assert [report["policy"] for report in content["reports"]] == ["baseline", "polestar"]
    assert "polestar" in content["configs"]["polestar"]


def test_step_prints_one_line_a_kind_of_step(dllmx: Command) -> None:
    result = dllmx("bench", "step", "policies=fast-dllm", "steps=3", "minutes=0", *SMALL)
    assert result.status == 0
    kinds = [line.split()[1] for line in result.out.splitlines() if "fast-dllm" in line]
    assert kinds == ["full", "partial"]
    (report,) = written(dllmx, "step")["reports"]
    assert report["steps"] == 3


def test_kernels_are_interpreted_without_times(dllmx: Command) -> None:
    arguments = ("interpret=true", "small=true", "only=probability_of")
    result = dllmx("bench", "kernels", *arguments)
    assert result.status == 0
    assert "agrees" in result.out
    assert "triton us" not in result.out
    content = written(dllmx, "kernels")
    assert content["interpreted"]
    assert [report["triton_us"] for report in content["reports"]] == [None]


def test_a_kernel_that_disagrees_ends_with_1(
    dllmx: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dllmx.kernels import confidence

    zeros = torch.zeros(8, dtype=torch.float64)
    monkeypatch.setattr(confidence, "probability_of_triton", lambda *arguments: zeros)
    arguments = ("interpret=true", "small=true", "only=probability_of")
    result = dllmx("bench", "kernels", *arguments)
    assert result.status == 1
    assert "not equal to their PyTorch twins: probability_of" in result.err


def test_the_gpu_check_runs_dry(dllmx: Command) -> None:
    result = dllmx("bench", "gpu-check", "dry_run=true", "output=check")
    assert result.status == 0, result.err
    report = json.loads((dllmx.folder / "check" / "gpu-check.json").read_text())
    assert report["dry_run"]
    assert report["graphs"] is False
    assert report["failures"] == []
    speed = [found for found in report["parts"]["speed"]["results"] if "policy" in found]
    policies = {"baseline", "parallel", "fast-dllm", "entropycache", "archer", "polestar"}
    assert {found["policy"] for found in speed} == policies
    assert all(found["tokens_per_second"] > 0 and found["kinds"] for found in speed)
    assert all(found["agrees"] for found in report["parts"]["kernels"]["results"])
    compared = report["parts"]["tokens"]["results"]
    assert all(found["differing_tokens"] == 0 for found in compared)
    assert len(compared) == 2 * 6 * len(report["kernels"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("decode", "policies="), "policies= is empty"),
        (("decode", "policies=fast"), "policy=fast is not an option. Did you mean fast-dllm"),
        (("decode", "policy=parallel"), "name the policies in policies="),
        (("decode", "commit=quota"), "tokens_per_step"),
        (("decode", "tokens_per_step=0"), "tokens_per_step=0 must be a number, 1 or more"),
        (("step", "steps=1.5"), "steps=1.5 must be a whole number"),
        (("kernels",), "needs a CUDA device"),
        (("kernels", "interpret=true"), "interpret=true small=true"),
        (("kernels", "interpret=true", "small=true", "only=x"), "only=x: choose from"),
        (("kernels", "model=llada"), "its sizes are LLaDA-8B's"),
        (("gpu-check",), "needs a CUDA device"),
        (("gpu-check", "model=llada"), "bench gpu-check has no key model=llada"),
        (("gpu-check", "dry_run=true", "hardware=cuda"), "has no effect with dry_run=true"),
        (("speed",), "speed is not a benchmark"),
    ],
)
def test_what_cannot_work_is_said_in_a_line_or_two(
    dllmx: Command,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = dllmx("bench", *arguments)
    assert result.status == 2
    assert message in result.err
    assert len(result.err.splitlines()) <= 2
    assert "Traceback" not in result.err


def test_the_interpreter_is_chosen_before_triton_is_loaded(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("TRITON_INTERPRET")
    code = (
        "from dllmx.cli.main import run_command_line as run;"
        "print(run('bench kernels interpret=true small=true only=probability_of'.split()))"
    )
    for before, status, said in (("", "0", ""), ("import triton;", "2", "TRITON_INTERPRET=1")):
        done = subprocess.run(
            [sys.executable, "-c", before + code],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.split()[-1] == status
        assert said in done.stderr


def test_formats_prints_one_line_a_format(dllmx: Command, tmp_path: Path) -> None:
    arguments = ("task.limit=1", f"output={tmp_path}")
    result = dllmx("bench", "formats", *arguments)
    assert result.status == 0, result.err
    for form in ("fp16", "nvfp4-direct", "int2"):
        assert form in result.out
    assert list((tmp_path / "bench").glob("formats-*.json"))


def test_formats_of_another_cache_are_refused(dllmx: Command, tmp_path: Path) -> None:
    result = dllmx("bench", "formats", "policy=fast-dllm", f"output={tmp_path}")
    assert result.status == 2
    assert "dllmx bench formats policy=polestar" in result.err
