"""``dllmx bench``: measurements that are ratios of things timed in one run."""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from dllmx.cli import console
from dllmx.cli.arguments import parse_number, refuse_keys, split_arguments, wants_help
from dllmx.errors import ConfigError

if TYPE_CHECKING:
    from dllmx.bench.overhead import OverheadReport
    from dllmx.config.schema import RunConfig

HELP = """\
Measure what decoding costs besides the model. Results: a table, and JSON in <output>/bench.

Usage: dllmx bench NAME [key=value ...]

  overhead      one decode as configured: every step beside the bare forward over the same rows;
                the share of the time outside matrix products and attention
                [prompt_length=512] [rounds=3]
  decode        each of several policies: the whole decode over its bare forwards
  step          the same by kind of step: full, window entry, refresh, partial
                [policies=baseline,parallel,...] [prompt_length=512] [gen_length=128]
                [block_length=32] [tokens_per_step=3] [minutes=5], step: [steps=12]
  kernels       each Triton kernel beside its PyTorch twin and the machine's limits
                [interpret=true small=true: without a GPU, agreement only] [only=NAME,...]
  formats       error of the keys and values that a Polestar refresh patches, and bytes, for each
                format of the kept states [task=tiny-math] [task.limit=10]
  gpu-check     everything that needs a GPU, in 8 minutes, into output=outputs/gpu-check
                [minutes=8] [dry_run=true: the same at tiny sizes on the CPU]

decode, step and gpu-check commit tokens_per_step tokens at each step: random weights are never sure
of a token.

  dllmx bench overhead                             dual cache, 4 tokens a step, 110 M parameters
  dllmx bench overhead policy=parallel             another method
  dllmx bench decode policies=fast-dllm,polestar   two policies, the same model
  dllmx bench step policies=polestar model=tiny-llada prompt_length=64
"""

OWN = ("prompt_length", "rounds")
DEFAULTS = {
    "model": "random-100m",
    "logger": "none",
    "task.gen_length": "128",
    "task.block_length": "32",
}
DEFAULT_METHOD = {"policy": "baseline", "cache": "dual", "sampler.steps": "32"}
"""Used unless the arguments choose a policy or a commit rule of their own."""

REFUSED = {
    "task": "its prompt is made of random tokens",
    "trace": "it keeps nothing",
    "overwrite": "each measurement has a file of its own",
    "batch_size": "it times one decode",
    "logger": "it logs nowhere",
}


COMMANDS = {
    "overhead": "dllmx.cli.bench",
    "decode": "dllmx.cli.bench_policies",
    "step": "dllmx.cli.bench_policies",
    "kernels": "dllmx.cli.bench_kernels",
    "formats": "dllmx.cli.bench_formats",
    "gpu-check": "dllmx.cli.gpu_check",
}
"""Benchmark -> module with ``run(name, argv) -> exit status``."""


def main(argv: list[str]) -> int:
    """Run the benchmark named first in ``argv``; returns the exit status."""
    if not argv or wants_help(argv, HELP):
        if not argv:
            raise ConfigError("dllmx bench needs the name of a benchmark: dllmx bench overhead")
        return 0
    name, rest = argv[0], argv[1:]
    if name not in COMMANDS:
        known = ", ".join(COMMANDS)
        raise ConfigError(f"{name} is not a benchmark of dllmx bench. There are: {known}.")
    return int(importlib.import_module(COMMANDS[name]).run(name, rest))


def run(name: str, argv: list[str]) -> int:
    """``dllmx bench overhead``."""
    command = f"bench {name}"
    arguments = split_arguments(argv, OWN, command)
    refuse_keys(arguments.overrides, REFUSED, command)
    prompt_length = whole_number("prompt_length", arguments.own.get("prompt_length", "512"))
    rounds = whole_number("rounds", arguments.own.get("rounds", "3"))
    from dllmx.cli.composing import compose_run

    config = compose_run(with_defaults(arguments.overrides))
    folder = result_folder(config)
    report = _measure(config, prompt_length, rounds)
    console.results().print(_table(report))
    content = {"report": report.to_dict(), "config": described(config)}
    write_result(name, config, folder, content)
    return 0


def with_defaults(overrides: list[str]) -> list[str]:
    """The overrides of the benchmark's own setting, then those that were given."""
    given = {override.partition("=")[0] for override in overrides}
    defaults = dict(DEFAULTS)
    if not given & {"policy", "commit"}:
        defaults |= DEFAULT_METHOD
    kept = [f"{key}={value}" for key, value in defaults.items() if key not in given]
    return [*kept, *overrides]


def _measure(config: RunConfig, prompt_length: int, rounds: int) -> OverheadReport:
    from dllmx.bench.overhead import measure_overhead
    from dllmx.models.loading import load_model
    from dllmx.runs import environment

    environment.use_threads(config.hardware.threads)
    model = load_model(config.model, config.hardware)
    return measure_overhead(
        model,
        config,
        prompt_length,
        rounds,
        lambda done: console.notice(f"round {done} of {rounds}"),
    )


def whole_number(key: str, value: str) -> int:
    """A whole number of at least 1. Raises ConfigError for anything else."""
    number = parse_number(key, value, 1)
    if number != int(number):
        raise ConfigError(f"{key}={value} must be a whole number, 1 or more.")
    return int(number)


def _table(report: OverheadReport) -> Table:
    table = Table(title="Overhead of decoding", show_header=False)
    rows = {
        "parameters": f"{report.parameters / 1e6:.1f} M",
        "prompt, response": f"{report.prompt_length}, {report.gen_length} tokens",
        "steps": f"{report.steps} ({report.full_steps} full)",
        "median step": f"{report.step_milliseconds:.1f} ms",
        "decode / bare forwards": f"{report.ratio:.3f}",
        "  full steps": _ratio(report.ratio_full_steps),
        "  partial steps": _ratio(report.ratio_partial_steps),
        "sampler, cache policy, commit rule": f"{100 * report.decision_share:.1f} %",
        "outside matrix products and attention": f"{100 * report.outside_share:.1f} %",
        "  the same for the bare forwards": f"{100 * report.forward_outside_share:.1f} %",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _ratio(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"


def result_folder(config: RunConfig) -> Path:
    """<output>/bench, which can be written to. Raises ConfigError where it cannot."""
    from dllmx.runs.files import make_writable_folder

    return make_writable_folder(Path(config.output) / "bench", "output")


def described(config: RunConfig) -> str:
    """The resolved configuration as YAML."""
    from dllmx.runs import describe

    return describe.config_yaml(config)


def write_result(name: str, config: RunConfig, folder: Path, content: dict[str, Any]) -> None:
    """Write ``content`` with the machine it was measured on, and say where."""
    from dllmx.runs import environment
    from dllmx.runs.files import write_json

    path = folder / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}.json"
    machine = environment.describe_machine(config.hardware.device)
    write_json(path, {**content, "machine": machine})
    console.notice(f"written: {path}")
