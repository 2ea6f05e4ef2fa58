from __future__ import annotations

import importlib
import pkgutil
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from dllmx import kernels
from dllmx.bench import kernels as cases_module
from dllmx.bench.floors import Machine
from dllmx.bench.kernel_runs import difference, run_case
from dllmx.bench.kernels import CASES, SMALL, Case, Inputs, Sizes, written_cases

INPUTS = Inputs(SMALL, torch.device("cpu"), torch.float32)


class Pair(NamedTuple):
    numbers: Tensor
    labels: Tensor | None = None


@pytest.mark.parametrize("case", written_cases(), ids=lambda case: case.name)
def test_every_kernel_agrees_with_its_twin_at_small_sizes(case: Case) -> None:
    report = run_case(case, INPUTS, Machine(1e12, 1e9))
    assert report.failure is None
    assert report.agrees
    assert (report.torch_us, report.triton_us) == (None, None)
    assert report.floor_us is not None


def test_every_triton_function_has_a_case() -> None:
    written = set()
    for module in pkgutil.iter_modules(kernels.__path__):
        names = vars(importlib.import_module(f"dllmx.kernels.{module.name}"))
        written |= {name for name in names if name.endswith("_triton")}
    assert written == {f"{case.function}_triton" for case in written_cases()}


def test_a_kernel_that_is_wrong_or_fails_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(case for case in CASES if case.function == "probability_of")
    from dllmx.kernels import confidence

    right = confidence.probability_of_torch
    monkeypatch.setattr(confidence, "probability_of_triton", lambda *a: right(*a) + 1)
    assert not run_case(case, INPUTS, None).agrees

    def broken(*arguments: object) -> Tensor:
        raise RuntimeError("out of registers\nand more")

    monkeypatch.setattr(confidence, "probability_of_triton", broken)
    report = run_case(case, INPUTS, None)
    assert (report.agrees, report.failure) == (False, "RuntimeError: out of registers")


def test_a_kernel_without_a_triton_version_is_no_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases_module, "CASES", (Case("language", "jit", "", lambda inputs: ()),))
    assert written_cases() == []


def test_numbers_are_compared_relative_to_the_largest_and_labels_counted() -> None:
    right = Pair(torch.tensor([-10.0, 1.0, -torch.inf]), torch.tensor([1, 2, 3, 4]))
    near = Pair(torch.tensor([-10.0, 1.5, -torch.inf]), torch.tensor([1, 2, 3, 5]))
    assert difference(right, right) == (0.0, 0.0)
    assert difference(near, right) == (0.05, 0.25)


@pytest.mark.parametrize("wrong", [[float("nan"), 1.0], [-float("inf"), 1.0], [1.0]])
def test_nan_infinity_and_another_shape_never_agree(wrong: list[float]) -> None:
    error, _ = difference(Pair(torch.tensor(wrong)), Pair(torch.tensor([1.0, 1.0])))
    assert error == float("inf")


def test_bytes_are_those_of_inputs_and_outputs() -> None:
    case = next(case for case in CASES if case.name == "row_attention, block")
    report = run_case(case, INPUTS, None)
    q_and_mixed = 2 * SMALL.heads * SMALL.rows * SMALL.size
    stored = 2 * SMALL.kv_heads * SMALL.keys * SMALL.size
    assert report.bytes == 4 * (q_and_mixed + stored)
    assert case.operations(Sizes()) == 4 * 32 * 1280 * 4096
