"""One run from its composed configuration to its report, with progress on the way."""

from __future__ import annotations

from omegaconf import DictConfig

from dllmx.cli.console import notice, notices
from dllmx.cli.progress import RunProgress
from dllmx.cli.sweep import JobPlace
from dllmx.cli.text import fixed, percent
from dllmx.config.compose import validate
from dllmx.runs import mirror
from dllmx.runs.execute import Outcome, execute
from dllmx.runs.plan import plan_run
from dllmx.runs.report import JobReport, report_outcome


def perform(cfg: DictConfig, place: JobPlace) -> JobReport:
    """Do the run, mirror it where the logger says, and report. Raises what the run raises."""
    config = validate(cfg)
    destination = mirror.destination(config.logger)
    run = plan_run(config)
    with RunProgress(notices()) as progress:
        outcome = execute(run, progress)
    notice(_line(outcome))
    line = mirror.mirror(outcome, destination, group=place.folder.name if place.folder else None)
    if line and (line != destination.hint or place.number == 0):
        notice(line)
    return report_outcome(place.number, place.overrides, outcome)


def _line(outcome: Outcome) -> str:
    metrics = outcome.metrics
    how = "already finished, skipped (overwrite=true decodes again)" if outcome.skipped else "done"
    return (
        f"{outcome.run.name}: {how}: accuracy {percent(metrics.accuracy)}, "
        f"TPF {fixed(metrics.tpf, 2)}, TPS {fixed(metrics.tps, 1)}"
    )
