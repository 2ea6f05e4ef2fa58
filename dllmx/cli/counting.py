"""Progress of a job that is a plain count: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TimeRemainingColumn

LINE_SECONDS = 10.0


@dataclass
class Counting:
    """Counts to ``total``; use it as a context manager so that the bar is taken down."""

    console: Console
    total: int
    done: int = 0
    last_line: float = field(default_factory=time.monotonic)
    bar: Progress | None = None
    task: TaskID = field(default=TaskID(0))

    def __enter__(self) -> Counting:
        if self.console.is_terminal:
            columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self.bar = Progress(*columns, console=self.console, transient=True)
            self.bar.start()
            self.task = self.bar.add_task("", total=self.total)
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def advance(self) -> None:
        """One more is done."""
        self.done += 1
        now = time.monotonic()
        if self.bar is not None:
            self.bar.update(self.task, completed=self.done)
        elif now - self.last_line >= LINE_SECONDS:
            self.last_line = now
            self.console.print(f"{self.done}/{self.total}", markup=False, highlight=False)
