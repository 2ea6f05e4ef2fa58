"""``dllmx bench kernels``: every Triton kernel beside its PyTorch twin."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from dllmx.cli import console
from dllmx.cli.arguments import parse_flag, refuse_keys, split_arguments
from dllmx.cli.bench import REFUSED, described, result_folder, write_result
from dllmx.cli.text import factor, fixed
from dllmx.errors import ConfigError, RunError

if TYPE_CHECKING:
    from dllmx.bench.kernel_runs import KernelReport
    from dllmx.bench.kernels import Case, Inputs
    from dllmx.config.schema import RunConfig

OWN = ("interpret", "small", "only")
INTERPRET = "TRITON_INTERPRET"
WITHOUT_GPU = "dllmx bench kernels interpret=true small=true"
UNUSED = {
    "model": "its sizes are LLaDA-8B's",
    "policy": "it calls the kernels themselves",
    "cache": "it calls the kernels themselves",
    "commit": "it calls the kernels themselves",
    "sampler": "it calls the kernels themselves",
}


def run(name: str, argv: list[str]) -> int:
    """Measure, print, write; exit status 1 when a kernel fails or disagrees with its twin."""
    command = f"bench {name}"
    arguments = split_arguments(argv, OWN, command)
    refuse_keys(arguments.overrides, REFUSED | UNUSED, command)
    interpret = parse_flag("interpret", arguments.own.get("interpret", "false"))
    small = parse_flag("small", arguments.own.get("small", "false"))
    check_triton()
    if interpret:
        if not small:
            raise ConfigError(f"interpret=true is slow at real sizes. Use: {WITHOUT_GPU}")
        interpret_kernels()
    from dllmx.cli.composing import compose_run

    overrides = arguments.overrides
    if not interpret and not any(o.partition("=")[0] == "hardware" for o in overrides):
        overrides = ["hardware=cuda", *overrides]
    config = compose_run(["logger=none", *overrides])
    inputs = _inputs(config, interpret, small)
    cases = _chosen(arguments.own.get("only"))
    folder = result_folder(config)
    reports = _measure(cases, inputs, config)
    print_kernels(reports)
    content = {
        "interpreted": interpret,
        "reports": [report.to_dict() for report in reports],
        "config": described(config),
    }
    write_result(name, config, folder, content)
    wrong = [report.case for report in reports if not report.agrees]
    if wrong:
        raise RunError(f"not equal to their PyTorch twins: {'; '.join(wrong)}.")
    return 0


def check_triton() -> None:
    """Raise ConfigError where triton is not installed."""
    if find_spec("triton") is None:
        raise ConfigError("the kernels need triton, which is not installed: pip install triton")


def interpret_kernels() -> None:
    """Let Triton run kernels on CPU tensors: decided when it is first imported."""
    if "triton" in sys.modules and os.environ.get(INTERPRET) != "1":
        raise ConfigError(f"Triton is loaded already. Start anew with {INTERPRET}=1 set.")
    os.environ[INTERPRET] = "1"


def print_kernels(reports: list[KernelReport]) -> None:
    """The table: agreement, and times with their ratios where they were taken."""
    from dllmx.cli.tables import text_table

    timed = any(report.triton_us is not None for report in reports)
    headers = ["kernel", "agrees", "error"]
    headers += ["torch us", "triton us", "speed-up", "floor us", "over the floor"] if timed else []
    rows = []
    for report in reports:
        error = "-" if report.error is None else f"{report.error:.1e}"
        cells = [report.case, "yes" if report.agrees else report.failure or "no", error]
        if timed:
            cells += [
                fixed(report.torch_us, 1),
                fixed(report.triton_us, 1),
                _over(report.torch_us, report.triton_us),
                fixed(report.floor_us, 1),
                _over(report.triton_us, report.floor_us),
            ]
        rows.append(cells)
    console.results().print(text_table(headers, rows))


def _over(value: float | None, base: float | None) -> str:
    return factor(None if value is None or not base else value / base)


def _inputs(config: RunConfig, interpret: bool, small: bool) -> Inputs:
    import torch

    from dllmx.bench.kernels import SMALL, Inputs, Sizes

    if not interpret and not torch.cuda.is_available():
        raise ConfigError(
            "bench kernels needs a CUDA device, and PyTorch sees none here.\n"
            f"Without one, agreement at small sizes: {WITHOUT_GPU}"
        )
    device = torch.device("cpu" if interpret else "cuda")
    dtype = torch.float32 if interpret else torch.bfloat16
    return Inputs(SMALL if small else Sizes(), device, dtype)


def _chosen(only: str | None) -> list[Case]:
    from dllmx.bench.kernels import written_cases

    cases = written_cases()
    if only is None:
        return cases
    names = {name.strip() for name in only.split(",")}
    known = sorted({case.function for case in cases})
    if not names <= set(known):
        raise ConfigError(f"only={only}: choose from {', '.join(known)}.")
    return [case for case in cases if case.function in names]


def _measure(cases: list[Case], inputs: Inputs, config: RunConfig) -> list[KernelReport]:
    from dllmx.bench.floors import machine_of
    from dllmx.bench.kernel_runs import run_case

    machine = machine_of(config.hardware)
    reports = []
    for case in cases:
        console.notice(case.name)
        reports.append(run_case(case, inputs, machine))
    return reports
