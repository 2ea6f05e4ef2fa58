"""``dllmx run``: one run, or with ``-m`` every combination of the values given."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dllmx.cli.main import DEBUG
from dllmx.errors import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from dllmx.runs.report import JobReport

HELP = """\
Decode a task with a policy and report accuracy, TPF, TPS and recomputation.

Usage: dllmx run [-m] [key=value ...]

  dllmx run                                        bundled model, task and policy
  dllmx run model=llada policy=parallel            other options: dllmx list
  dllmx run task=tiny-lists task.limit=50          the first 50 problems
  dllmx run commit.threshold=0.8 seed=1            any key of the configuration
  dllmx run -m policy=baseline,parallel,fast-dllm  each policy in turn, and one table

  -m, --multirun     run every combination of comma-separated values
  --cfg job          print the composed configuration and stop
  --config-dir DIR   read further options from DIR/GROUP/NAME.yaml

Each run has its own folder in <output>/runs, named after its configuration: the same command goes
on where it was interrupted, and skips what is finished (overwrite=true decodes again).
"""


def main(argv: list[str]) -> int:
    """Run the command; returns its exit status. A single run that fails raises its own error."""
    if any(argument in ("-h", "--help") for argument in argv):
        sys.stdout.write(HELP)
        return 0
    from dllmx.cli import sweep
    from dllmx.cli.composing import run_hydra

    finished: list[JobReport] = []
    failures: list[Exception] = []
    folders = sweep.expect_sweep()
    try:
        run_hydra(_job(finished, failures), [sweep.folder_override(argv), *argv])
    except OSError as error:  # jobs keep theirs to themselves: this is the folder of the sweep
        raise ConfigError(
            f"output: cannot write to {error.filename} ({error.strerror}). "
            "Choose another: output=FOLDER"
        ) from error
    except KeyboardInterrupt:
        if folders:
            sweep.show(folders[0])
        raise
    if failures:
        raise failures[0]
    if folders:
        return sweep.conclude(folders[0])
    _show(finished)
    return 0


def _job(finished: list[JobReport], failures: list[Exception]) -> Callable[[DictConfig], None]:
    """What Hydra calls for every job. It never raises, so that one failure leaves the others be."""

    def job(cfg: DictConfig) -> None:
        from dllmx.cli import sweep
        from dllmx.cli.one_run import perform
        from dllmx.runs.report import failed_report, save_report

        place = sweep.current_job()
        try:
            report = perform(cfg, place)
        except Exception as error:  # noqa: BLE001  a job of a sweep must not end the others
            if place.folder is None:
                failures.append(error)
                return
            report = failed_report(place.number, place.overrides, error)
            _tell_failure(report)
        if place.folder is None:
            finished.append(report)
        else:
            save_report(sweep.jobs_folder(place.folder), report)

    return job


def _tell_failure(report: JobReport) -> None:
    from dllmx.cli.console import notice

    if os.environ.get(DEBUG):
        traceback.print_exc()
    notice(f"failed: {' '.join(report.overrides)}: {report.error}")


def _show(reports: Sequence[JobReport]) -> None:
    from dllmx.cli.console import results
    from dllmx.cli.tables import print_results

    console = results()
    print_results(console, reports)
    for report in reports:
        console.print(f"Results: {report.folder}", markup=False, soft_wrap=True)
