"""``dllmx bench decode`` and ``dllmx bench step``: several policies on one model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dllmx.cli import console
from dllmx.cli.arguments import parse_number, refuse_keys, split_arguments
from dllmx.cli.bench import DEFAULTS, REFUSED, described, result_folder, whole_number, write_result
from dllmx.cli.text import factor, fixed, memory, percent
from dllmx.errors import ConfigError

if TYPE_CHECKING:
    from dllmx.bench.decoding import PolicyReport, Setting
    from dllmx.config.schema import RunConfig
    from dllmx.models.model import Model

OWN = ("policies", "prompt_length", "gen_length", "block_length", "tokens_per_step", "minutes")
LENGTHS = {"gen_length": "128", "block_length": "32"}
FORCED = {
    "policy": "name the policies in policies=",
    "commit": "what is committed follows tokens_per_step",
}
Cells = list[list[str]]


def run(name: str, argv: list[str]) -> int:
    """Measure every policy and print one table; ``name``: decode or step."""
    command = f"bench {name}"
    own = (*OWN, "steps") if name == "step" else OWN
    arguments = split_arguments(argv, own, command)
    refuse_keys(arguments.overrides, REFUSED | FORCED, command)
    given = arguments.own
    prompt_length = whole_number("prompt_length", given.get("prompt_length", "512"))
    tokens = parse_number("tokens_per_step", given.get("tokens_per_step", "3"), 1)
    minutes = parse_number("minutes", given.get("minutes", "5"), 0)
    most = whole_number("steps", given.get("steps", "12")) if name == "step" else None
    lengths = [f"task.{key}={given.get(key, usual)}" for key, usual in LENGTHS.items()]
    names = policy_names(given.get("policies"))
    configs = compose_policies(names, [*lengths, *arguments.overrides])
    first = next(iter(configs.values()))
    folder = result_folder(first)
    from dllmx.bench.decoding import Setting
    from dllmx.bench.floors import machine_of

    setting = Setting(prompt_length, tokens, machine_of(first.hardware), most)
    reports = _measure(configs, setting, 60 * minutes)
    headers, rows = (_by_kind if name == "step" else _by_policy)(reports)
    _print(headers, rows)
    content = {
        "prompt_length": prompt_length,
        "tokens_per_step": tokens,
        "reports": [report.to_dict() for report in reports],
        "configs": {policy: described(config) for policy, config in configs.items()},
    }
    write_result(name, first, folder, content)
    return 0


def policy_names(value: str | None) -> list[str]:
    """The names in ``policies=``, or the six that are compared by default."""
    from dllmx.bench.decoding import POLICIES

    if value is None:
        return list(POLICIES)
    names = [name.strip() for name in value.split(",") if name.strip()]
    if not names:
        raise ConfigError(f"policies= is empty. Such as: policies={','.join(POLICIES)}")
    return list(dict.fromkeys(names))


def compose_policies(names: list[str], overrides: list[str]) -> dict[str, RunConfig]:
    """The configuration of every policy, on the benchmark's own model unless another is given."""
    from dllmx.cli.composing import compose_run

    given = {override.partition("=")[0] for override in overrides}
    kept = [f"{key}={value}" for key, value in DEFAULTS.items() if key not in given]
    return {name: compose_run([f"policy={name}", *kept, *overrides]) for name in names}


def _measure(
    configs: Mapping[str, RunConfig], setting: Setting, seconds: float
) -> list[PolicyReport]:
    from dllmx.bench.decoding import decode_peak, measure_policies
    from dllmx.models.loading import load_model
    from dllmx.runs import environment

    first = next(iter(configs.values()))
    environment.use_threads(first.hardware.threads)
    model: Model = load_model(first.model, first.hardware)
    return measure_policies(
        model,
        configs,
        setting,
        seconds,
        lambda policy, number: console.notice(f"{policy}: round {number}"),
        decode_peak,
    )


def _by_policy(reports: list[PolicyReport]) -> tuple[list[str], Cells]:
    headers = ["policy", "rounds", "steps", "full", "decode/bare", "decisions", "ms a step"]
    headers += ["full", "window entry", "refresh", "partial", "peak memory", "floor"]
    rows = []
    for report in reports:
        kinds = {kind.kind: kind for kind in report.kinds}
        ratios = [
            f"x{kinds[kind].ratio:.3f}" if kind in kinds else "-"
            for kind in ("full", "window entry", "refresh", "partial")
        ]
        rows.append(
            [
                report.policy,
                str(report.rounds),
                str(report.steps),
                str(kinds["full"].steps if "full" in kinds else 0),
                f"x{report.ratio:.3f}",
                percent(report.decision_share),
                fixed(report.step_ms, 1),
                *ratios,
                "-" if report.peak_bytes is None else memory(report.peak_bytes),
                factor(report.floor_ratio),
            ]
        )
    return headers, rows


def _by_kind(reports: list[PolicyReport]) -> tuple[list[str], Cells]:
    headers = ["policy", "step", "steps", "rows", "ms", "bare ms", "step/bare", "floor ms", "floor"]
    rows = [
        [
            report.policy,
            kind.kind,
            str(kind.steps),
            fixed(kind.rows, 0),
            fixed(kind.step_ms, 1),
            fixed(kind.bare_ms, 1),
            f"x{kind.ratio:.3f}",
            fixed(kind.floor_ms, 2),
            factor(kind.floor_ratio),
        ]
        for report in reports
        for kind in report.kinds
    ]
    return headers, rows


def _print(headers: list[str], rows: Cells) -> None:
    """One table, without the columns that say nothing on this machine."""
    from dllmx.cli.tables import text_table

    shown = [i for i in range(len(headers)) if any(row[i] != "-" for row in rows)]
    table = text_table([headers[i] for i in shown], [[row[i] for i in shown] for row in rows])
    console.results().print(table)
