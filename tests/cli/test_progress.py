from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, cast

import pytest
from rich.console import Console

from dllmx.cli import progress
from dllmx.cli.counting import Counting
from dllmx.cli.progress import RunProgress
from dllmx.metrics.samples import SampleRecord
from dllmx.runs.plan import PlannedRun


class Hardware:
    device = "cpu"


class Model:
    name = "tiny"


class Config:
    hardware = Hardware
    model = Model


class Run:
    """As much of a run as progress looks at."""

    name = "tiny-baseline"
    config = Config
    problems = (None,) * 4


def record(number: int) -> SampleRecord:
    return SampleRecord(
        id=str(number), prompt_ids=[], output_ids=[], text="", answer=None, correct=number % 2 == 0,
        reference=None, nfe=4, counters={}, seconds=1.0, batch=number, batch_size=1, tokens_all=8,
        tokens_non_eos=6, tokens_after_stop=0, eos_position=None, empty=False, peak_memory_bytes=1,
    )  # fmt: skip


def watch(console: Console, before: int, batches: Sequence[int]) -> str:
    run = cast(PlannedRun, Run)
    records = [record(number) for number in range(before)]
    with RunProgress(console) as shown:
        shown.loading(run)
        shown.started(run, records)
        for number in batches:
            records.append(record(number))
            shown.decoded(records)
    stream = cast(io.StringIO, console.file)
    return stream.getvalue()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the clock finds it 30 seconds later."""
    now = iter(range(0, 100_000, 30))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(now)))


@pytest.mark.usefixtures("clock")
def test_elsewhere_than_on_a_terminal_there_are_plain_lines() -> None:
    lines = watch(Console(file=io.StringIO(), width=200), 1, [1, 2, 3]).splitlines()
    assert lines[0] == "tiny-baseline: loading tiny on cpu"
    assert lines[1] == "tiny-baseline: resumed, 1 of 4 already decoded"
    assert lines[2] == "2/4  accuracy 50.0 %  TPF 1.50  TPS 6  1 min 00 s left"
    assert lines[-1] == "4/4  accuracy 50.0 %  TPF 1.50  TPS 6  0 s left"


def test_plain_lines_do_not_come_for_every_sample() -> None:
    assert len(watch(Console(file=io.StringIO(), width=200), 0, [0, 1, 2]).splitlines()) == 1


@pytest.mark.usefixtures("clock")
def test_a_terminal_gets_a_bar_that_is_taken_down() -> None:
    options: dict[str, Any] = {"force_terminal": True, "width": 120, "color_system": None}
    shown = watch(Console(file=io.StringIO(), **options), 0, [0, 1])
    assert "2/4 accuracy 50.0 %  TPF 1.50" in shown
    assert shown.endswith("\x1b[2K")


def test_counting_is_quiet_while_short() -> None:
    console = Console(file=io.StringIO(), width=80)
    with Counting(console, 3) as counting:
        for _ in range(3):
            counting.advance()
    assert cast(io.StringIO, console.file).getvalue() == ""
    assert counting.done == 3
