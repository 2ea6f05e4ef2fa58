from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dllmx.errors import RunError
from dllmx.runs.lock import LOCK_FILE, locked

HOLDER = """
import sys, time
from pathlib import Path
from dllmx.runs.lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_holder_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    refused = pytest.raises(RunError, match=f"process {os.getpid()} on ")
    with locked(tmp_path), refused, locked(tmp_path):
        pass


def test_the_lock_is_free_again_afterwards(tmp_path: Path) -> None:
    for _ in range(2):
        with locked(tmp_path):
            pass


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(RunError, match=f"process {holder.pid}"), locked(tmp_path):
        pass
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    assert (tmp_path / LOCK_FILE).exists()
    with locked(tmp_path):
        pass
