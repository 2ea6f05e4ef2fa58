"""The tables that ``run`` and ``compare`` print."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich import box
from rich.table import Table

from dllmx.cli.text import ABSENT, factor, fixed, memory, percent
from dllmx.metrics.summary import RunMetrics, ratio
from dllmx.runs.report import JobReport, baseline_of

Cell = Callable[[RunMetrics], str]

METRIC_COLUMNS: tuple[tuple[str, Cell], ...] = (
    ("accuracy", lambda m: percent(m.accuracy)),
    ("95 % interval", lambda m: f"{100 * m.accuracy_low:.1f} to {100 * m.accuracy_high:.1f}"),
    ("NFE", lambda m: fixed(m.nfe_mean, 1)),
    ("TPF", lambda m: fixed(m.tpf, 2)),
    ("tpf_all", lambda m: fixed(m.tpf_all, 2)),
    ("TPS", lambda m: fixed(m.tps, 1)),
    ("recompute", lambda m: fixed(m.recompute_ratio, 3)),
    ("memory", lambda m: memory(m.peak_memory_bytes)),
    ("empty", lambda m: f"{m.empty_answers}/{m.samples}"),
)

LEGEND = (
    "NFE: forwards a sample. TPF, TPS: non-EOS tokens a forward, a second of decoding; "
    "tpf_all counts EOS too.\n"
    "recompute: rows x layers computed, of full recomputation. memory: peak. empty: empty answers."
)


def results_table(reports: Sequence[JobReport]) -> Table:
    """One line a finished run; with ratios where its baseline is among ``reports``."""
    shown = [report for report in reports if report.metrics is not None]
    with_ratios = any(baseline_of(report, shown) for report in shown)
    settings = _distinguishing(shown)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("model", "task", "policy"):
        table.add_column(name, no_wrap=True)
    if any(settings):
        table.add_column("settings")
    for name, _ in METRIC_COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("TPF ratio", "TPS ratio") if with_ratios else ():
        table.add_column(name, justify="right", no_wrap=True)
    for report, setting in zip(shown, settings, strict=True):
        cells = [setting] if any(settings) else []
        cells += _metric_cells(report)
        cells += _ratio_cells(report, shown) if with_ratios else []
        table.add_row(report.model, report.task, report.policy, *cells)
    return table


def _metric_cells(report: JobReport) -> list[str]:
    metrics = report.metrics
    return [] if metrics is None else [show(metrics) for _, show in METRIC_COLUMNS]


def _ratio_cells(report: JobReport, reports: Sequence[JobReport]) -> list[str]:
    base = baseline_of(report, reports)
    if base is None or base.metrics is None or report.metrics is None:
        return [ABSENT, ABSENT]
    pairs = ((report.metrics.tpf, base.metrics.tpf), (report.metrics.tps, base.metrics.tps))
    return [factor(ratio(a, b)) if a is not None and b is not None else ABSENT for a, b in pairs]


def _distinguishing(reports: Sequence[JobReport]) -> list[str]:
    """For each report the overrides that are not common to all, model, task and policy aside."""
    common = set.intersection(*(set(r.overrides) for r in reports)) if reports else set()
    named = ("model=", "task=", "policy=")
    return [
        " ".join(o for o in r.overrides if o not in common and not o.startswith(named))
        for r in reports
    ]
