"""``dllmx bench formats``: error and size of the formats of Polestar's kept states."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dllmx.cli import console
from dllmx.cli.arguments import refuse_keys, split_arguments
from dllmx.cli.bench import described, result_folder, write_result
from dllmx.cli.text import fixed

if TYPE_CHECKING:
    from dllmx.bench.formats import FormatReport
    from dllmx.config.schema import RunConfig

DEFAULTS = {"policy": "polestar", "task.limit": "10", "logger": "none"}
REFUSED = {
    "trace": "it keeps nothing",
    "overwrite": "each measurement has a file of its own",
    "batch_size": "it forks one decode at a time",
    "logger": "it logs nowhere",
    "cache.residual_format": "it measures all formats",
}


def run(name: str, argv: list[str]) -> int:
    """Decode the task's problems, compare the formats, print and write one table."""
    command = f"bench {name}"
    arguments = split_arguments(argv, (), command)
    refuse_keys(arguments.overrides, REFUSED, command)
    given = {override.partition("=")[0] for override in arguments.overrides}
    kept = [f"{key}={value}" for key, value in DEFAULTS.items() if key not in given]
    from dllmx.cli.composing import compose_run

    config = compose_run([*kept, *arguments.overrides])
    folder = result_folder(config)
    reports = _measure(config)
    _print(reports)
    content = {
        "reports": [report.to_dict() for report in reports],
        "config": described(config),
    }
    write_result(name, config, folder, content)
    return 0


def _measure(config: RunConfig) -> list[FormatReport]:
    from dllmx.bench.formats import measure_formats
    from dllmx.config import parts
    from dllmx.decode.batch import Request
    from dllmx.models.loading import load_model
    from dllmx.models.tokenizer import load_tokenizer
    from dllmx.runs import environment
    from dllmx.runs.identity import sample_seed
    from dllmx.runs.plan import prompt_ids

    environment.use_threads(config.hardware.threads)
    model = load_model(config.model, config.hardware)
    tokenizer = load_tokenizer(config.model, model.shape)
    problems = parts.load("task", config.task.name).Task(config.task).problems()
    requests = [
        Request(problem.id, prompt_ids(problem, tokenizer), sample_seed(config.seed, problem.id))
        for problem in problems
    ]
    return measure_formats(model, config, requests)


def _print(reports: list[FormatReport]) -> None:
    from dllmx.cli.tables import text_table

    headers = ["format", "refreshes", "error of keys", "of values", "bytes of the window"]
    rows = [
        [
            report.form,
            str(report.refreshes),
            fixed(report.key_error, 4),
            fixed(report.value_error, 4),
            fixed(report.window_bytes, 0),
        ]
        for report in reports
    ]
    console.results().print(text_table(headers, rows))
