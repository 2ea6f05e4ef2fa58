"""``dllmx train-tiny``: trains a bundled model again, from nothing or from where it was stopped."""

from __future__ import annotations

import dataclasses
import difflib
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table

from dllmx.cli import console
from dllmx.cli.arguments import split_arguments, wants_help
from dllmx.cli.text import percent, span
from dllmx.errors import ConfigError
from dllmx.training.config import TrainConfig

if TYPE_CHECKING:
    from dllmx.training.evaluate import Result
    from dllmx.training.loop import Report

THRESHOLDS = (None, 0.9, 0.7, 0.5, 0.3)
"""Commit rules under which the finished model is measured; None is one token a forward."""

LINE_SECONDS = 30.0
"""Shortest time between two plain lines."""

HELP = """Train a bundled tiny model. The same command goes on after an interruption.

Usage: dllmx train-tiny [key=value ...]

  model=tiny-llada        tiny-llada or tiny-dream
  steps=N                 updates in all
  batch=N                 canvases an update
  rate=X                  peak learning rate
  warmup=N                updates until the peak
  decay=X                 share of the updates, at the end, in which the rate goes to zero
  weight_decay=X clip=X   as in the optimizer
  seed=N                  of the weights and the data
  threads=N               CPU threads
  save_every=N            updates between two saved states
  evaluate_every=N        updates between two settings of the task mix
  evaluate_problems=N     training problems a task that set the mix
  measure=N               held-out problems a task for the final table
  output=FOLDER           state and finished checkpoint go to FOLDER/<model>

The defaults are the recipe of the bundled weights; see the model cards.
"""


def main(argv: list[str]) -> int:
    """Train, measure and export; returns the exit status."""
    if wants_help(argv, HELP):
        return 0
    config = parse_config(argv)
    from dllmx.training import evaluate, export, loop

    with TrainingProgress(console.notices(), config) as progress:
        run = loop.train(config, progress.update)
    console.notice(f"measuring {config.measure} held-out problems a task")
    results = evaluate.held_out(run.model, config.measure, THRESHOLDS)
    folder = config.folder / "checkpoint"
    export.export_model(run, folder, results)
    console.results().print(_table(results))
    console.notice(f"checkpoint: {folder}")
    return 0


def parse_config(argv: list[str]) -> TrainConfig:
    """The configuration that ``key=value`` arguments ask for. ConfigError for an unknown key."""
    kinds = {entry.name: str(entry.type) for entry in dataclasses.fields(TrainConfig)}
    arguments = split_arguments(argv, tuple(kinds), "train-tiny")
    if arguments.overrides:
        raise ConfigError(_unknown_key(arguments.overrides[0], list(kinds)))
    values = {key: _read(key, value, kinds[key]) for key, value in arguments.own.items()}
    return TrainConfig(**values)


def _read(key: str, value: str, kind: str) -> Any:
    if kind not in ("int", "float"):
        return value
    try:
        return int(value) if kind == "int" else float(value)
    except ValueError:
        raise ConfigError(f"{key}={value} must be {_kind_in_words(kind)}.") from None


def _kind_in_words(kind: str) -> str:
    return "a whole number" if kind == "int" else "a number"


def _unknown_key(argument: str, known: list[str]) -> str:
    key = argument.partition("=")[0]
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"Did you mean {near[0]}=...?" if near else "See: dllmx train-tiny --help"
    return f"{argument}: train-tiny has no key {key!r}. {hint}"


class TrainingProgress:
    """A bar on a terminal, a plain line now and then elsewhere; use it as a context manager."""

    def __init__(self, out: Console, config: TrainConfig) -> None:
        """Nothing is shown before the first update."""
        self.out = out
        self.config = config
        self.bar: Progress | None = None
        self.task = TaskID(0)
        self.first: Report | None = None
        self.last_line = time.monotonic()

    def __enter__(self) -> TrainingProgress:
        """Start the bar when there is a terminal."""
        self.out.print(f"training {self.config.model} in {self.config.folder}", markup=False)
        if self.out.is_terminal:
            columns = (BarColumn(24), MofNCompleteColumn(), TextColumn("{task.fields[facts]}"))
            self.bar = Progress(*columns, console=self.out, transient=True)
            self.bar.start()
            self.task = self.bar.add_task("", total=self.config.steps, facts="")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take the bar down."""
        if self.bar is not None:
            self.bar.stop()

    def update(self, report: Report) -> None:
        """Show one update."""
        self.first = self.first or report
        facts = self._facts(self.first, report)
        if self.bar is not None:
            self.bar.update(self.task, completed=report.step, facts=facts)
        elif report.step == report.steps or time.monotonic() - self.last_line >= LINE_SECONDS:
            self.last_line = time.monotonic()
            self.out.print(f"{report.step}/{report.steps}  {facts}", markup=False, soft_wrap=True)

    def _facts(self, first: Report, report: Report) -> str:
        steps = report.step - first.step
        left = (report.seconds - first.seconds) / max(steps, 1) * (report.steps - report.step)
        time_left = f"  {span(left)} left" if steps else ""
        return f"loss {report.loss:.3f}  {_accuracies(report.accuracy)}{time_left}"


def _accuracies(accuracy: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {percent(value)}" for name, value in accuracy.items())


def _table(results: list[Result]) -> Table:
    table = Table("task", "commit", "accuracy", "TPF")
    for result in results:
        rule = "one a forward" if result.threshold is None else f"threshold {result.threshold:g}"
        table.add_row(
            result.task, rule, percent(result.accuracy), f"{result.tokens_per_forward:.2f}"
        )
    return table
