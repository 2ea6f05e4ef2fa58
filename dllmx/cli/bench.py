"""``dllmx bench``: measurements that are ratios of things timed in one run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from dllmx.cli import console
from dllmx.cli.arguments import parse_number, refuse_keys, split_arguments, wants_help
from dllmx.errors import ConfigError

if TYPE_CHECKING:
    from dllmx.bench.overhead import OverheadReport
    from dllmx.config.schema import RunConfig

HELP = """\
Measure what decoding costs besides the model. Results: a table, and JSON in <output>/bench.

Usage: dllmx bench overhead [prompt_length=512] [rounds=3] [key=value ...]

  overhead      every step of a decode beside the bare forward over the same rows; the share of
                the time in sampler, cache policy and commit rule, and that outside matrix
                products and attention

  dllmx bench overhead                             dual cache, 4 tokens a step, 110 M parameters
  dllmx bench overhead policy=parallel             another method
  dllmx bench overhead model=tiny-llada prompt_length=64 sampler.gen_length=32
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


def main(argv: list[str]) -> int:
    """Run the benchmark named first in ``argv``; returns the exit status."""
    if not argv or wants_help(argv, HELP):
        if not argv:
            raise ConfigError("dllmx bench needs the name of a benchmark: dllmx bench overhead")
        return 0
    name, rest = argv[0], argv[1:]
    if name != "overhead":
        raise ConfigError(f"{name} is not a benchmark. There is: dllmx bench overhead")
    _overhead(rest)
    return 0


def _overhead(argv: list[str]) -> None:
    arguments = split_arguments(argv, OWN, "bench overhead")
    refuse_keys(arguments.overrides, REFUSED, "bench overhead")
    prompt_length = _whole(arguments.own.get("prompt_length", "512"), "prompt_length")
    rounds = _whole(arguments.own.get("rounds", "3"), "rounds")
    from dllmx.cli.composing import compose_run

    config = compose_run(with_defaults(arguments.overrides))
    from dllmx.runs.files import make_writable_folder

    folder = make_writable_folder(Path(config.output) / "bench", "output")
    report = _measure(config, prompt_length, rounds)
    console.results().print(_table(report))
    console.notice(f"written: {_write(report, config, folder)}")


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


def _whole(value: str, key: str) -> int:
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
        "decode / bare forwards": _ratio(report.ratio),
        "  full steps": _ratio(report.ratio_full_steps),
        "  partial steps": _ratio(report.ratio_partial_steps),
        "sampler, cache policy, commit rule": f"{100 * report.decision_share:.1f} %",
        "outside matrix products and attention": f"{100 * report.outside_share:.1f} %",
        "  the same for the bare forwards": _share(report.forward_outside_share),
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _ratio(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"


def _share(value: float | None) -> str:
    return "none" if value is None else f"{100 * value:.1f} %"


def _write(report: OverheadReport, config: RunConfig, folder: Path) -> Path:
    from dllmx.runs import describe, environment
    from dllmx.runs.files import write_json

    path = folder / f"overhead-{time.strftime('%Y%m%d-%H%M%S')}.json"
    content = {
        "report": report.to_dict(),
        "machine": environment.describe_machine(config.hardware.device),
        "versions": environment.package_versions(),
        "config": describe.config_yaml(config),
    }
    write_json(path, content)
    return path
