"""``dllmx plan``: what a decode costs at least on a GPU, before it is run and without weights."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from dllmx.cli import console
from dllmx.cli.arguments import (
    Arguments,
    parse_flag,
    parse_number,
    refuse_keys,
    split_arguments,
    wants_help,
)
from dllmx.cli.bench import whole_number
from dllmx.cli.text import fixed, memory, percent

if TYPE_CHECKING:
    from dllmx.config.schema import RunConfig
    from dllmx.plan.report import Plan

HELP = """\
Predict the least time of a decode on a GPU that need not be here. No weights are loaded.

Usage: dllmx plan [policy=NAME] [model=NAME] [hardware=NAME] [key=value ...]

  model=llada hardware=a100-80gb     which model, on which GPU; any profile that states its peaks
  prompt_length=1024                 tokens of the prompt
  gen_length=256 block_length=32     tokens of the response and of a block
  tokens_per_step=1,2,3.67           tokens committed a step, one plan for each
  trace=RUN                          the steps of a finished run with trace=true, instead of a
                                     schedule: a run's folder or the beginning of its name
  json=true, or --json               JSON instead of tables

  dllmx plan policy=polestar
  dllmx plan policy=fast-dllm model=dream hardware=gh200 prompt_length=512
  dllmx plan trace=outputs/runs/RUN model=llada hardware=h100
"""

SCHEDULE = ("prompt_length", "gen_length", "block_length", "tokens_per_step")
OWN = (*SCHEDULE, "trace", "json")
LENGTHS = {"gen_length": "256", "block_length": "32"}
DEFAULTS = {"model": "llada", "hardware": "a100-80gb", "logger": "none"}
REFUSED = {
    "task": "its prompt is made of random tokens",
    "trace": "name a run with trace=RUN",
    "overwrite": "it writes nothing",
    "batch_size": "it plans one decode",
    "logger": "it logs nowhere",
}
RECORDED = dict.fromkeys(
    (*SCHEDULE, "policy", "sampler", "cache", "commit", "seed"), "the run of the trace has its own"
)

Cells = tuple[list[str], list[list[str]]]


def main(argv: list[str]) -> int:
    """Run the command; returns its exit status."""
    if wants_help(argv, HELP):
        return 0
    argv = ["json=true" if argument == "--json" else argument for argument in argv]
    arguments = split_arguments(argv, OWN, "plan")
    refuse_keys(arguments.overrides, REFUSED, "plan")
    as_json = parse_flag("json", arguments.own.get("json", "false"))
    config, plan = _planned(arguments)
    if as_json:
        about = {"model": config.model.name, "hardware": asdict(config.hardware)}
        sys.stdout.write(json.dumps(about | plan.to_dict(), indent=1) + "\n")
    else:
        _print(config, plan)
    return 0


def _planned(arguments: Arguments) -> tuple[RunConfig, Plan]:
    own, trace = arguments.own, arguments.own.get("trace")
    if trace is not None:
        given = [f"{key}={value}" for key, value in own.items() if key != "trace"]
        refuse_keys([*given, *arguments.overrides], RECORDED, "plan trace=RUN")
    prompt = whole_number("prompt_length", own.get("prompt_length", "1024"))
    values = own.get("tokens_per_step", "1,2,3.67").split(",")
    rates = [parse_number("tokens_per_step", value, 1) for value in values]
    config = _composed(arguments)
    from dllmx.plan.report import plan_schedule, plan_trace
    from dllmx.runs.folder import find_run

    if trace is not None:
        return config, plan_trace(config, find_run(trace, Path(config.output)))
    return config, plan_schedule(config, prompt, list(dict.fromkeys(rates)))


def _composed(arguments: Arguments) -> RunConfig:
    from dllmx.cli.composing import compose_run

    given = {override.partition("=")[0] for override in arguments.overrides}
    values = {key: value for key, value in DEFAULTS.items() if key not in given}
    values |= {f"task.{key}": arguments.own.get(key, value) for key, value in LENGTHS.items()}
    return compose_run([*(f"{key}={value}" for key, value in values.items()), *arguments.overrides])


def _print(config: RunConfig, plan: Plan) -> None:
    from dllmx.cli.tables import text_table

    output, hardware = console.results(), config.hardware
    output.print(
        f"{config.model.name} on {hardware.name} ({hardware.peak_tflops:g} TFLOP/s, "
        f"{hardware.bandwidth_gbs:g} GB/s, {hardware.dtype}): {plan.title}",
        markup=False,
    )
    output.print(text_table(*_kind_cells(plan), left=1))
    output.print(text_table(*_cost_cells(plan), left=0))
    if plan.figures:
        output.print(text_table(*_figure_cells(plan, hardware.name), left=3))
    elif plan.labels != ["trace"]:
        output.print("The papers print no TPS for this policy, model and response length.\n")
    output.print(_memory_line(plan), markup=False)
    for assumption in plan.assumptions:
        output.print(f"- {assumption}", markup=False, soft_wrap=True)


def _kind_cells(plan: Plan) -> Cells:
    headers = ["step", "rows", "logit rows", "GB", "TFLOP", "least ms", "limit"]
    headers += ["steps"] if plan.labels == ["trace"] else [f"steps at {n}" for n in plan.labels]
    rows = []
    for kind in plan.kinds:
        cells = [kind.kind, fixed(kind.rows, 1), fixed(kind.predicted, 1)]
        cells += [fixed(kind.moved / 1e9, 2), fixed(kind.operations / 1e12, 2)]
        cells += [fixed(kind.milliseconds, 2), kind.limit]
        rows.append([*cells, *(str(cost.steps_of(kind.kind)) for cost in plan.costs)])
    return headers, rows


def _cost_cells(plan: Plan) -> Cells:
    headers = ["tokens a step", "steps", "TPF", "least ms a step", "least seconds", "TPS at most"]
    rows = [
        [
            label,
            str(cost.steps),
            fixed(cost.tokens_per_forward, 2),
            fixed(1e3 * cost.seconds / cost.steps, 2),
            fixed(cost.seconds, 3),
            fixed(cost.tokens_per_second, 1),
        ]
        for label, cost in zip(plan.labels, plan.costs, strict=True)
    ]
    return headers, rows


def _figure_cells(plan: Plan, hardware: str) -> Cells:
    """Published figures; beside those of the same GPU the floor, which holds for no other."""
    from dllmx.plan.published import GPUS

    headers = ["published", "GPU", "benchmark", "TPF", "TPS", "TPS at most", "reached"]
    rows = []
    for figure, floor in zip(plan.figures, plan.floors, strict=True):
        most = floor if GPUS.get(hardware) == figure.gpu else None
        cells = [f"{figure.paper}, {figure.place}", figure.gpu, figure.benchmark]
        cells += [fixed(figure.tpf, 2), fixed(figure.tps, 2), fixed(most, 1)]
        rows.append([*cells, percent(None if most is None else figure.tps / most)])
    return headers, rows


def _memory_line(plan: Plan) -> str:
    held = f"weights {memory(plan.target.weight_bytes)}, keys and values {memory(plan.store_bytes)}"
    if plan.target.memory is None:
        return f"Memory: {held}."
    verdict = "" if plan.fits else " They do not fit."
    return f"Memory: {held}; the GPU has {memory(plan.target.memory)}.{verdict}"
