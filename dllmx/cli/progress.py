"""How a run shows its progress: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from dllmx.cli.text import fixed, percent, span
from dllmx.metrics.samples import SampleRecord
from dllmx.metrics.summary import summarize
from dllmx.runs.plan import PlannedRun

LINE_SECONDS = 10.0
"""Shortest time between two plain lines."""

BAR_SECONDS = 0.2
"""Shortest time between two updates of the bar: each sums over all samples."""


@dataclass
class RunProgress:
    """Observer of one run; use it as a context manager so that the bar is taken down."""

    console: Console
    total: int = 0
    resumed: int = 0
    began: float = 0.0
    last_shown: float = 0.0
    bar: Progress | None = None
    task: TaskID = field(default=TaskID(0))

    def __enter__(self) -> RunProgress:
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def loading(self, run: PlannedRun) -> None:
        """Name the run and the model that is being loaded."""
        self._print(f"{run.name}: loading {run.config.model.name} on {run.config.hardware.device}")

    def started(self, run: PlannedRun, records: Sequence[SampleRecord]) -> None:
        """Start the clock; say how much an earlier attempt has left to do."""
        self.total, self.resumed = len(run.problems), len(records)
        if records:
            self._print(f"{run.name}: resumed, {self.resumed} of {self.total} already decoded")
        self.began = self.last_shown = time.monotonic()
        if self.console.is_terminal:
            self.bar = _bar(self.console)
            self.bar.start()
            self.task = self.bar.add_task("", total=self.total, completed=self.resumed, facts="")

    def decoded(self, records: Sequence[SampleRecord]) -> None:
        """Show how the run stands."""
        now = time.monotonic()
        if now - self.last_shown < (LINE_SECONDS if self.bar is None else BAR_SECONDS):
            return
        self.last_shown = now
        facts = self._facts(records, now)
        if self.bar is None:
            self._print(f"{len(records)}/{self.total}  {facts}")
        else:
            self.bar.update(self.task, completed=len(records), facts=facts)

    def _facts(self, records: Sequence[SampleRecord], now: float) -> str:
        metrics = summarize(records)
        decoded = len(records) - self.resumed
        left = (now - self.began) / decoded * (self.total - len(records)) if decoded else 0.0
        return (
            f"accuracy {percent(metrics.accuracy)}  TPF {fixed(metrics.tpf, 2)}  "
            f"TPS {fixed(metrics.tps, 0)}  {span(left)} left"
        )

    def _print(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


def _bar(console: Console) -> Progress:
    return Progress(
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[facts]}"),
        console=console,
        transient=True,
    )
