"""Running the command line from tests: in this process, or as a user types it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dllmx.cli.main import run_command_line

CHECKPOINT = Path(__file__).parent / "reference" / "tiny-llada"
MODEL = (f"model.path={CHECKPOINT}", "model.chat=false", "logger=none")
SMALL = (*MODEL, "task.limit=4")
PROGRAM = Path(sys.executable).parent / "dllmx"


@dataclass(frozen=True)
class Result:
    """How a command ended and what it printed."""

    status: int
    out: str
    err: str


class Command:
    """Runs dllmx commands in a folder of their own."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.capsys = capsys

    def __call__(self, *arguments: str) -> Result:
        """Run one command line in this process."""
        self.capsys.readouterr()
        status = run_command_line(list(arguments))
        printed = self.capsys.readouterr()
        return Result(status, printed.out, printed.err)

    def run_folders(self) -> list[Path]:
        """The run folders written so far."""
        return sorted((self.folder / "outputs" / "runs").iterdir())

    def only_run(self) -> Path:
        """The one run folder written so far."""
        (folder,) = self.run_folders()
        return folder


def start(*arguments: str, folder: Path) -> subprocess.Popen[str]:
    """Start a command line as a process of its own."""
    return subprocess.Popen(
        [str(PROGRAM), *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_listen_to_interrupts,
    )


def _listen_to_interrupts() -> None:
    """A shell starts background jobs, and all that they start, deaf to SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def complete(*arguments: str, folder: Path) -> Result:
    """Run a command line as a process of its own, to its end."""
    process = start(*arguments, folder=folder)
    out, err = process.communicate(timeout=240)
    return Result(process.returncode, out, err)


def read_samples(folder: Path) -> list[dict[str, Any]]:
    """The sample lines of a run folder."""
    path = folder / "samples.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for_lines(folder: Path, pattern: str, lines: int, process: subprocess.Popen[str]) -> None:
    """Wait until the file that fits ``pattern`` has ``lines`` lines."""
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        for path in folder.glob(pattern):
            if path.read_bytes().count(b"\n") >= lines:
                return
        if process.poll() is not None:
            raise AssertionError(f"it ended first: {process.communicate()}")
        time.sleep(0.005)
    raise AssertionError(f"no {lines} lines in {pattern}")
