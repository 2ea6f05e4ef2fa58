"""``dllmx bench gpu-check``: all that needs a GPU, in one call and one JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dllmx.cli import console
from dllmx.cli.arguments import parse_flag, parse_number, split_arguments
from dllmx.cli.bench_kernels import check_triton, interpret_kernels
from dllmx.cli.text import factor, fixed, memory
from dllmx.errors import ConfigError, RunError

if TYPE_CHECKING:
    from dllmx.bench.gpu_check import Settings

OWN = ("output", "dry_run", "minutes", "hardware")
OUTPUT = "outputs/gpu-check"
DRY_RUN = "dllmx bench gpu-check dry_run=true"
FILE = "gpu-check.json"


def run(name: str, argv: list[str]) -> int:
    """Check, print the speed, write; exit status 1 when anything failed."""
    arguments = split_arguments(argv, OWN, f"bench {name}")
    given = arguments.own
    if arguments.overrides:
        raise ConfigError(
            f"bench gpu-check has no key {arguments.overrides[0]}: what it runs is fixed, so that "
            f"results can be compared. Its keys: {', '.join(OWN)}."
        )
    minutes = parse_number("minutes", given.get("minutes", "8"), 0)
    dry_run = parse_flag("dry_run", given.get("dry_run", "false"))
    check_triton()
    settings = _dry(60 * minutes, given) if dry_run else _real(60 * minutes, given)
    from dllmx.bench.gpu_check import run_gpu_check
    from dllmx.runs.files import make_writable_folder, write_json

    folder = make_writable_folder(Path(given.get("output", OUTPUT)), "output")
    path = folder / FILE
    report = run_gpu_check(settings, lambda content: write_json(path, content), console.notice)
    _print(report)
    console.notice(f"written: {path}")
    if report["failures"]:
        shown = report["failures"][0].splitlines()[0]
        raise RunError(f"{len(report['failures'])} failures, the first: {shown}. All: {path}")
    return 0


def _real(seconds: float, given: Any) -> Settings:
    import torch

    if not torch.cuda.is_available():
        raise ConfigError(
            "bench gpu-check needs a CUDA device, and PyTorch sees none here. "
            f"Its code at tiny sizes on the CPU: {DRY_RUN}"
        )
    from dllmx.bench.gpu_check import gpu_settings

    return gpu_settings(given.get("hardware", "cuda"), seconds)


def _dry(seconds: float, given: Any) -> Settings:
    if "hardware" in given:
        raise ConfigError("hardware= has no effect with dry_run=true, which runs on the CPU.")
    interpret_kernels()
    from dllmx.bench.gpu_check import dry_settings

    return dry_settings(seconds)


def _print(report: dict[str, Any]) -> None:
    """Tokens a second, steps and memory of each policy, then what was skipped."""
    from dllmx.cli.tables import text_table

    headers = ["policy", "kernels", "tokens a step", "TPS", "ms a step", "/bare", "/floor", "peak"]
    rows = [
        [
            found["policy"],
            found["kernels"],
            fixed(found["tokens_per_forward"], 2),
            fixed(found["tokens_per_second"], 1),
            fixed(found["step_ms"], 2),
            factor(found["decode_over_bare"]),
            factor(found["floor_ratio"]),
            memory(found["peak_bytes"]),
        ]
        for found in report["parts"].get("speed", {}).get("results", [])
        if "policy" in found
    ]
    console.results().print(text_table(headers, rows))
    for name, part in report["parts"].items():
        for skipped in part["skipped"]:
            console.notice(f"skipped, {name}: {skipped['item']}: {skipped['reason']}")
