"""Kernels compiled for GPUs that are not here, in a process without the interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dllmx.bench import compile_kernels
from dllmx.kernels import confidence, row_attention

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
HERE = Path(__file__).parent


def run(*arguments: str, interpret: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"}
    environment.pop("TRITON_INTERPRET", None)
    if interpret is not None:
        environment["TRITON_INTERPRET"] = interpret
    return subprocess.run(
        [sys.executable, "-m", compile_kernels.__name__, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )


def compiled(*arguments: str) -> list[dict[str, Any]]:
    done = run(*arguments)
    assert done.stdout, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["compiled"]
    assert done.returncode == any(one["problems"] for one in found)
    return found


@pytest.fixture(scope="module")
def toys() -> dict[str, dict[str, Any]]:
    return {one["variant"]: one for one in compiled("--module", "toy_kernels", "--arch", "90")}


def test_every_kernel_compiles_without_spills_and_within_its_budget() -> None:
    found = compiled("--arch", "80", "90", "100")
    wrong = [f"{one['variant']}, sm_{one['arch']}: {one['problems']}" for one in found]
    assert [line for line, one in zip(wrong, found, strict=True) if one["problems"]] == []
    assert all(one["spilled"] == 0 and one["registers"] <= one["budget"] for one in found)
    names = {one["variant"] for one in found}
    assert {variant.name for variant in (*confidence.VARIANTS, *row_attention.VARIANTS)} <= names
    assert len(found) == 3 * len(names)


def test_a_kernel_that_fits_has_no_problems(toys: dict[str, dict[str, Any]]) -> None:
    fits = toys["fits"]
    assert fits["problems"] == []
    assert 8 < fits["registers"] <= fits["budget"]
    assert fits["spilled"] == 0


@pytest.mark.parametrize(
    ("variant", "problem"),
    [
        ("too many registers", "registers, declared 8"),
        ("wrong signature", "arguments differ in: forgotten"),
        ("does not compile", "CompilationError: at 3:"),
        ("crashes the compiler", "the compiler crashed"),
        ("spills", "bytes a thread are spilled"),
        ("too much shared memory", "of shared memory, a block may have 232448"),
    ],
)
def test_what_is_wrong_with_a_kernel_is_said(
    toys: dict[str, dict[str, Any]], variant: str, problem: str
) -> None:
    assert problem in "; ".join(toys[variant]["problems"])


def test_under_the_interpreter_nothing_can_be_compiled() -> None:
    done = run(interpret="1")
    assert done.returncode == 2
    assert "env -u TRITON_INTERPRET python -m dllmx.bench.compile_kernels" in done.stderr


def test_an_unknown_kernel_is_refused_with_those_that_there_are() -> None:
    done = run("--kernel", "confidenc")
    assert done.returncode == 2
    assert "confidenc declares no kernels" in done.stderr
    assert "row_attention" in done.stderr


def test_only_the_named_files_are_compiled() -> None:
    modules = compile_kernels.kernel_modules()
    tasks = compile_kernels.find_tasks(modules, (80, 90), ["confidence"])
    assert {task.module for task in tasks} == {confidence.__name__}
    assert len(tasks) == 2 * len(confidence.VARIANTS)
