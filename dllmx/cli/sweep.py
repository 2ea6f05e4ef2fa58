"""Multiruns: where their jobs report, and the table at their end."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig

from dllmx.cli.console import results
from dllmx.cli.tables import print_results
from dllmx.runs.identity import digest
from dllmx.runs.report import load_reports

_announced: list[Path] = []


@dataclass(frozen=True, slots=True)
class JobPlace:
    """Which job this is; ``folder`` is that of the multirun, None for a single run."""

    number: int
    overrides: list[str]
    folder: Path | None


class AnnounceSweep(Callback):
    """Hydra calls it in the process that starts a multirun, whichever launcher runs the jobs."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Note the folder of the multirun."""
        _announced.append(Path(config.hydra.sweep.dir))


def expect_sweep() -> list[Path]:
    """A list that holds the folder of the multirun, once one has started."""
    _announced.clear()
    return _announced


def folder_override(argv: list[str]) -> str:
    """The override that names a multirun's folder: the time and a hash of the arguments."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    return f"hydra.sweep.dir=${{output}}/sweeps/{stamp}-{digest(argv)[:8]}"


def jobs_folder(sweep: Path) -> Path:
    """Where the jobs of a multirun write their reports."""
    return sweep / "jobs"


def current_job() -> JobPlace:
    """The job that Hydra is running."""
    hydra = HydraConfig.get()
    overrides = [str(override) for override in hydra.overrides.task]
    if hydra.mode != RunMode.MULTIRUN:
        return JobPlace(0, overrides, None)
    return JobPlace(int(hydra.job.num), overrides, Path(hydra.sweep.dir))


def conclude(sweep: Path) -> int:
    """Print the table of all jobs, then the failures. Returns 1 when a job failed, else 0."""
    failed = show(sweep)
    return 1 if failed else 0


def show(sweep: Path) -> int:
    """Print how the jobs of a multirun ended so far; returns the number of failures."""
    reports = load_reports(jobs_folder(sweep))
    failures = [report for report in reports if report.failed]
    console = results()
    print_results(console, reports)
    if failures:
        console.print(f"{len(failures)} of {len(reports)} jobs failed:", style="bold")
    for report in failures:
        line = f"  {' '.join(report.overrides)}: {report.error}"
        console.print(line, markup=False, soft_wrap=True)
    console.print(f"Reports of the jobs: {jobs_folder(sweep)}", markup=False, soft_wrap=True)
    return len(failures)
