"""Runs of the kernels' cases: agreement with the twin, times, ratio to the machine's limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from dllmx.bench.floors import Machine
from dllmx.bench.kernels import Case, Inputs

REPEATS = 20
FLUSHED_BYTES = 256 * 2**20
"""More than any GPU's cache, written before each call, so that inputs come from memory."""


@dataclass(frozen=True, slots=True)
class KernelReport:
    """One case. ``error``: largest difference of a number over the largest of the twin's;
    ``differing``: share of whole numbers that differ. Times are medians in microseconds, None
    where they were not taken. ``failure``: why it could not run, else None.
    """

    case: str
    agrees: bool
    error: float | None = None
    differing: float | None = None
    torch_us: float | None = None
    triton_us: float | None = None
    floor_us: float | None = None
    bytes: int | None = None
    operations: float | None = None
    failure: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def run_case(case: Case, inputs: Inputs, machine: Machine | None) -> KernelReport:
    """Agreement of ``case``, and its times where the inputs are on a GPU.

    Whatever a kernel raises becomes the report's ``failure``: the other cases still count.
    """
    try:
        return _run(case, inputs, machine)
    except Exception as error:  # noqa: BLE001  a compiler can fail in any way
        lines = str(error).strip().splitlines() or [""]
        return KernelReport(case.name, False, failure=f"{type(error).__name__}: {lines[0]}")


def difference(result: Any, expected: Any) -> tuple[float, float]:
    """Error of the numbers and share of differing whole numbers of two equally built results."""
    error, wrong, whole = 0.0, 0, 0
    for mine, other in zip(_tensors(result), _tensors(expected), strict=True):
        if mine.shape != other.shape:
            return float("inf"), 1.0
        if mine.dtype.itemsize == 1:  # packed codes, and scales of eight bits
            mine, other = mine.view(torch.uint8), other.view(torch.uint8)
        if not other.is_floating_point():
            wrong += int((mine != other).sum())
            whole += other.numel()
            continue
        mine, other = mine.double(), other.double()
        apart = torch.where(mine == other, 0.0, (mine - other).abs())  # -inf equals -inf
        finite = other[other.isfinite()].abs()
        scale = float(finite.max()) if finite.numel() else 1.0
        largest = (
            float(apart.nan_to_num(nan=torch.inf, posinf=torch.inf).max()) if apart.numel() else 0.0
        )
        error = max(error, largest / max(scale, 1e-30))
    return error, wrong / max(whole, 1)


def _run(case: Case, inputs: Inputs, machine: Machine | None) -> KernelReport:
    plain, kernel = case.twin("torch"), case.twin("triton")
    assert plain is not None
    assert kernel is not None
    arguments = case.arguments(inputs)
    result = kernel(*arguments)
    for_plain = case.arguments(inputs)
    expected = case.outputs(plain(*for_plain), for_plain)
    error, differing = difference(case.outputs(result, arguments), expected)
    agrees = error <= case.tolerance and differing <= case.differing
    moved = sum(tensor.nbytes for tensor in (*_tensors(arguments), *_tensors(result)))
    operations = case.operations(inputs.sizes)
    times: dict[str, float] = {}
    if inputs.device.type == "cuda":
        runs = {"torch_us": plain, "triton_us": kernel}
        times = _times({name: _bound(run, arguments) for name, run in runs.items()})
    floor = None if machine is None else 1e6 * machine.seconds(operations, moved)
    return KernelReport(
        case.name, agrees, error, differing, times.get("torch_us"), times.get("triton_us"),
        floor_us=floor, bytes=moved, operations=operations,
    )  # fmt: skip


def _bound(run: Callable[..., Any], arguments: tuple[Any, ...]) -> Callable[[], Any]:
    return lambda: run(*arguments)


def _times(runs: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Median microseconds of each run on the GPU, taken in turn."""
    flushed = torch.empty(FLUSHED_BYTES, dtype=torch.int8, device="cuda")
    found: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    for _ in range(REPEATS):
        for name, run in runs.items():
            start = torch.cuda.Event(enable_timing=True)
            end = torch.cuda.Event(enable_timing=True)
            flushed.zero_()
            start.record()
            run()
            end.record()
            end.synchronize()
            found[name].append(1e3 * start.elapsed_time(end))
    return {name: median(times) for name, times in found.items()}


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in a result or in arguments, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for part in value:
            yield from _tensors(part)
