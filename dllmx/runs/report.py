"""How one job of a command ended, as a record that tables and sweeps read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dllmx.config.schema import RunConfig
from dllmx.errors import DllmxError
from dllmx.metrics.summary import RunMetrics
from dllmx.runs.execute import Outcome
from dllmx.runs.files import write_json
from dllmx.runs.identity import digest

BASELINE = "baseline"
"""Name of the policy that ratios are taken against."""

BASELINE_PARTS = ("none", "quota")
"""Its cache and commit rule."""


@dataclass(frozen=True, slots=True)
class JobReport:
    """One job. ``status``: finished, skipped (was finished before) or failed.

    ``comparable``: digest of everything that must be equal for a ratio to make sense (model, task,
    hardware, seed, batch size). ``is_baseline``: it decoded as the baseline policy says, with no
    part exchanged.
    """

    number: int
    overrides: list[str]
    status: str
    exit_status: int = 0
    error: str | None = None
    folder: str | None = None
    model: str | None = None
    policy: str | None = None
    task: str | None = None
    comparable: str | None = None
    is_baseline: bool = False
    metrics: RunMetrics | None = None

    @property
    def failed(self) -> bool:
        """Whether the job has no result."""
        return self.status == "failed"


def report_outcome(number: int, overrides: list[str], outcome: Outcome) -> JobReport:
    """The report of a job that has its metrics."""
    config = outcome.run.config
    return JobReport(
        number=number,
        overrides=overrides,
        status="skipped" if outcome.skipped else "finished",
        folder=str(outcome.run.folder.path),
        model=config.model.name,
        policy=config.policy.name,
        task=config.task.name,
        comparable=comparable_key(config),
        is_baseline=is_baseline(config),
        metrics=outcome.metrics,
    )


def failed_report(number: int, overrides: list[str], error: Exception) -> JobReport:
    """The report of a job that ended with ``error``."""
    return JobReport(
        number=number,
        overrides=overrides,
        status="failed",
        exit_status=error.exit_status if isinstance(error, DllmxError) else 1,
        error=error_line(error),
    )


def error_line(error: Exception) -> str:
    """What a user is told of an error, on one line."""
    if isinstance(error, DllmxError):
        return " ".join(str(error).split())
    return f"internal error: {type(error).__name__}: {' '.join(str(error).split())}"


def is_baseline(config: RunConfig) -> bool:
    """Whether the run is the baseline: one token a step, nothing cached."""
    sampler = config.sampler
    return (
        config.policy.name == BASELINE
        and (config.cache.name, config.commit.name) == BASELINE_PARTS
        and sampler.steps in (None, sampler.gen_length)
    )


def comparable_key(config: RunConfig) -> str:
    """Digest of what two runs must share for one to be the other's baseline."""
    shared = (config.model, config.task, config.hardware)
    return digest([*(asdict(part) for part in shared), config.seed, config.batch_size])


def baseline_of(report: JobReport, reports: Sequence[JobReport]) -> JobReport | None:
    """The baseline run that ``report`` is held against; None: there is none beside it."""
    if report.failed or report.is_baseline:
        return None
    candidates = (other for other in reports if other.is_baseline)
    return next((other for other in candidates if other.comparable == report.comparable), None)


def save_report(folder: Path, report: JobReport) -> None:
    """Write the report of a multirun's job into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"{report.number:04d}.json", asdict(report))


def load_reports(folder: Path) -> list[JobReport]:
    """The reports in ``folder``, by job number."""
    return [_report_from_json(json.loads(p.read_text())) for p in sorted(folder.glob("*.json"))]


def _report_from_json(entry: dict[str, Any]) -> JobReport:
    metrics = entry.pop("metrics")
    return JobReport(**entry, metrics=RunMetrics(**metrics) if metrics else None)
