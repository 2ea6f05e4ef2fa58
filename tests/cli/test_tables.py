from __future__ import annotations

import io

import pytest
from rich.console import Console

from dllmx.cli.tables import print_results, result_cells
from dllmx.metrics.summary import RunMetrics
from dllmx.runs.report import JobReport, baseline_of


def report(policy: str, tpf: float, comparable: str = "same", extra: str = "") -> JobReport:
    metrics = RunMetrics(
        samples=10, correct=9, accuracy=0.9, accuracy_low=0.6, accuracy_high=0.98, nfe=100,
        nfe_mean=10.0, tokens_all=320, tokens_non_eos=200, tokens_after_stop=0, tpf=tpf,
        tpf_all=3.2, tps=100 * tpf, seconds=2.0, recompute_ratio=0.4, peak_memory_bytes=10**9,
        empty_answers=1, counters={},
    )  # fmt: skip
    overrides = [f"policy={policy}", "task.limit=10", *([extra] if extra else [])]
    return JobReport(
        number=0, overrides=overrides, status="finished", model="tiny", policy=policy,
        task="math", comparable=comparable, is_baseline=policy == "baseline", metrics=metrics,
    )  # fmt: skip


def printed(reports: list[JobReport], width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_results(console, reports)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_ratios_are_against_the_baseline_of_the_same_kind_only() -> None:
    reports = [report("baseline", 1.0), report("fast", 2.5), report("fast", 4.0, "other model")]
    headers, rows = result_cells(reports)
    assert headers[-2:] == ["TPF ratio", "TPS ratio"]
    assert [row[-2:] for row in rows] == [["-", "-"], ["x2.50", "x2.50"], ["-", "-"]]
    assert baseline_of(reports[1], reports) is reports[0]


def test_without_a_baseline_there_are_no_ratios() -> None:
    headers, _ = result_cells([report("fast", 2.5), report("parallel", 2.0)])
    assert "TPF ratio" not in headers


def test_what_tells_jobs_apart_is_a_column_and_what_they_share_is_not() -> None:
    headers, rows = result_cells(
        [report("fast", 2, extra="seed=0"), report("fast", 2, extra="seed=1")]
    )
    settings = headers.index("settings")
    assert [row[settings] for row in rows] == ["seed=0", "seed=1"]


@pytest.mark.parametrize("width", [200, 80])
def test_every_metric_is_printed_whole_on_wide_and_narrow_screens(width: int) -> None:
    text = printed([report("baseline", 1.0), report("fast", 2.5)], width)
    for words in ("90.0 % [60.0, 98.0]", "recompute", "tpf_all", "x2.50", "1.0 GB", "1/10"):
        assert words in text
    assert "…" not in text


def test_a_single_run_is_explained_line_by_line() -> None:
    text = printed([report("fast", 2.5)], 80)
    assert "task.limit=10" in text
    assert "non-EOS tokens a forward" in text
    assert "Wilson interval" in text
