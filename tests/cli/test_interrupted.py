"""Runs killed in the middle, as by a power cut, and continued by the same command."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from commanding import MODEL, complete, read_samples, start, wait_for_lines

from dllmx.metrics.summary import TIMING_FIELDS

LIMIT = 24
RUN = ("run", *MODEL, f"task.limit={LIMIT}", "policy=fast-dllm", "trace=true")
SWEEP = (*RUN[:1], "-m", *RUN[1:-2], "policy=parallel,fast-dllm", "trace=true")
SAMPLES = "outputs/runs/*/samples.jsonl"
SECOND_SAMPLES = "outputs/runs/*fast-dllm*/samples.jsonl"
TIMING = ("seconds", "peak_memory_bytes")


def kill_at(arguments: tuple[str, ...], folder: Path, pattern: str, lines: int) -> None:
    """Start the command, wait for so many finished samples, and kill it without warning."""
    process = start(*arguments, folder=folder)
    wait_for_lines(folder, pattern, lines, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def results(folder: Path) -> dict[str, Any]:
    """Per run folder: metrics and samples without what times may change."""
    found = {}
    for run in sorted((folder / "outputs" / "runs").iterdir()):
        metrics = json.loads((run / "metrics.json").read_text())
        samples = read_samples(run)
        for entry in (metrics, *samples):
            for name in (*TIMING_FIELDS, *TIMING):
                entry.pop(name, None)
        found[run.name] = (metrics, samples)
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the runs of the sweep were never interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    assert complete(*SWEEP, folder=folder).status == 0
    return folder


def test_a_killed_run_goes_on_and_ends_as_if_never_killed(tmp_path: Path, whole: Path) -> None:
    killed, kept = tmp_path, []
    for lines in (3, 12):
        kill_at(RUN, killed, SAMPLES, lines)
        (path,) = killed.glob(SAMPLES)
        kept.append(path.read_bytes())
        assert not list(killed.glob("outputs/runs/*/metrics.json"))
    resumed = complete(*RUN, folder=killed)
    assert resumed.status == 0
    assert f"of {LIMIT} already decoded" in resumed.err
    final = path.read_bytes()
    for before in kept:  # what was finished stays, byte for byte
        assert final.startswith(before[: before.rfind(b"\n") + 1])
    ids = [sample["id"] for sample in read_samples(path.parent)]
    assert len(ids) == len(set(ids)) == LIMIT
    assert results(killed).items() <= results(whole).items()
    (trace,), (other,) = (f.glob("outputs/runs/*fast-dllm*/trace*") for f in (killed, whole))
    assert trace.read_bytes() == other.read_bytes()
    attempts = json.loads((path.parent / "run.json").read_text())["attempts"]
    assert len(attempts) == 3


@pytest.mark.parametrize("pattern", [SAMPLES, SECOND_SAMPLES])
def test_a_killed_multirun_skips_what_is_finished_and_goes_on(
    tmp_path: Path, whole: Path, pattern: str
) -> None:
    killed = tmp_path
    kill_at(SWEEP, killed, pattern, 5)
    finished = [path.parent for path in killed.glob("outputs/runs/*/metrics.json")]
    before = {path: (path / "samples.jsonl").stat().st_mtime_ns for path in finished}
    resumed = complete(*SWEEP, folder=killed)
    assert resumed.status == 0
    assert resumed.err.count("already finished, skipped") == len(finished)
    assert resumed.err.count("resumed, ") == 1
    assert {path: (path / "samples.jsonl").stat().st_mtime_ns for path in finished} == before
    assert results(killed) == results(whole)


def test_an_interrupt_from_the_keyboard_keeps_the_samples_and_says_so(tmp_path: Path) -> None:
    process = start(*RUN, folder=tmp_path)
    wait_for_lines(tmp_path, SAMPLES, 3, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "The same command goes on from here" in err
    assert "Traceback" not in err
    (path,) = tmp_path.glob(SAMPLES)
    assert path.read_bytes().endswith(b"\n")
    assert not list(tmp_path.glob("outputs/runs/*/error.txt"))


def test_a_second_process_on_the_same_run_is_turned_away(tmp_path: Path) -> None:
    first = start(*RUN, folder=tmp_path)
    wait_for_lines(tmp_path, SAMPLES, 1, first)
    first.send_signal(signal.SIGSTOP)
    try:
        second = complete(*RUN, folder=tmp_path)
        assert second.status == 1
        assert f"process {first.pid} on " in second.err
    finally:
        first.send_signal(signal.SIGCONT)
        out, err = first.communicate(timeout=240)
    assert (first.returncode, "Traceback" in err) == (0, False), out + err
