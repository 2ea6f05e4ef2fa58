"""The table of results that ``run`` prints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from dllmx.cli.text import ABSENT, factor, fixed, memory, percent
from dllmx.metrics.summary import RunMetrics, ratio
from dllmx.runs.report import JobReport, baseline_of

NAMES = ("model", "task", "policy")
UNBOUNDED = 10_000


@dataclass(frozen=True, slots=True)
class Column:
    """One metric: its name, what it means, and how a run's value is written."""

    name: str
    meaning: str
    show: Callable[[RunMetrics], str]


COLUMNS = (
    Column(
        "accuracy",
        "right answers [95 % Wilson interval]",
        lambda m: (
            f"{percent(m.accuracy)} [{100 * m.accuracy_low:.1f}, {100 * m.accuracy_high:.1f}]"
        ),
    ),
    Column("NFE", "forwards a sample", lambda m: fixed(m.nfe_mean, 1)),
    Column("TPF", "non-EOS tokens a forward", lambda m: fixed(m.tpf, 2)),
    Column("tpf_all", "tokens a forward, EOS too", lambda m: fixed(m.tpf_all, 2)),
    Column("TPS", "non-EOS tokens a second of decoding", lambda m: fixed(m.tps, 1)),
    Column(
        "recompute",
        "rows x layers computed, of full recomputation",
        lambda m: fixed(m.recompute_ratio, 3),
    ),
    Column(
        "memory", "peak: process, or allocated on the GPU", lambda m: memory(m.peak_memory_bytes)
    ),
    Column("empty", "answers without text", lambda m: f"{m.empty_answers}/{m.samples}"),
)


def print_results(console: Console, reports: Sequence[JobReport]) -> None:
    """Print every finished job of ``reports``; ratios where its baseline is among them."""
    shown = [report for report in reports if report.metrics is not None]
    if len(shown) == 1:
        console.print(_single_table(shown[0]))
    elif shown:
        headers, rows = result_cells(shown)
        table = text_table(headers, rows, left=_left_columns(headers))
        if _width(console, table) > console.width:
            turned = [list(cells) for cells in zip(headers, *rows, strict=True)]
            table = text_table(["" for _ in turned[0]], turned, left=1)
        console.print(table)
        meanings = "; ".join(f"{c.name}: {c.meaning}" for c in COLUMNS[1:-1])
        console.print(meanings, style="dim", markup=False)


def result_cells(reports: Sequence[JobReport]) -> tuple[list[str], list[list[str]]]:
    """Headers and one list of cells a job; the ``settings`` column holds what tells jobs apart."""
    settings = _distinguishing(reports)
    with_settings, with_ratios = any(settings), any(baseline_of(r, reports) for r in reports)
    headers = [*NAMES, *(["settings"] if with_settings else []), *(c.name for c in COLUMNS)]
    headers += ["TPF ratio", "TPS ratio"] if with_ratios else []
    rows = []
    for report, setting in zip(reports, settings, strict=True):
        cells = [report.model or "", report.task or "", report.policy or ""]
        cells += [setting] if with_settings else []
        cells += [column.show(report.metrics) for column in COLUMNS if report.metrics]
        cells += _ratio_cells(report, reports) if with_ratios else []
        rows.append(cells)
    return headers, rows


def _single_table(report: JobReport) -> Table:
    names = [[name, getattr(report, name) or "", ""] for name in NAMES]
    settings = " ".join(_settings(report))
    names += [["settings", settings, ""]] if settings else []
    metrics = report.metrics
    values = [[c.name, c.show(metrics), c.meaning] for c in COLUMNS if metrics]
    return text_table(["", "", ""], [*names, *values], left=3)


def text_table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], left: int | None = None
) -> Table:
    """A plain table. The first ``left`` columns (None: all) are aligned to the left."""
    named = any(headers)
    table = Table(box=box.SIMPLE_HEAD if named else None, show_header=named, pad_edge=False)
    for index, header in enumerate(headers):
        table.add_column(header, justify="left" if left is None or index < left else "right")
    for cells in rows:
        table.add_row(*(cell.replace("[", "\\[") for cell in cells))
    return table


def _left_columns(headers: Sequence[str]) -> int:
    return len(NAMES) + ("settings" in headers)


def _width(console: Console, table: Table) -> int:
    options = console.options.update(max_width=UNBOUNDED)
    return Measurement.get(console, options, table).maximum


def _ratio_cells(report: JobReport, reports: Sequence[JobReport]) -> list[str]:
    base = baseline_of(report, reports)
    if base is None or base.metrics is None or report.metrics is None:
        return [ABSENT, ABSENT]
    pairs = ((report.metrics.tpf, base.metrics.tpf), (report.metrics.tps, base.metrics.tps))
    return [factor(ratio(a, b)) if a is not None and b is not None else ABSENT for a, b in pairs]


def _distinguishing(reports: Sequence[JobReport]) -> list[str]:
    """For each report the overrides that are not common to all."""
    common = set.intersection(*(set(r.overrides) for r in reports)) if reports else set()
    return [" ".join(o for o in _settings(report) if o not in common) for report in reports]


def _settings(report: JobReport) -> list[str]:
    """The overrides of a job that the other columns do not show."""
    shown = tuple(f"{name}=" for name in (*NAMES, "logger", "overwrite", "output"))
    return [override for override in report.overrides if not override.startswith(shown)]
