"""One process at a time in a run folder."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dllmx.errors import RunError

LOCK_FILE = ".lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of ``folder``. Raises RunError when another process that lives has it.

    The system drops the lock with the process, however it ends, so a lock file that a killed
    process left behind is simply taken over. The file itself stays: removing it would let a third
    process lock a new file of the same name while a second one still waits on the old.
    """
    with (folder / LOCK_FILE).open("a+", encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(_refusal(folder)) from None
        stream.truncate(0)
        stream.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}) + "\n")
        stream.flush()
        yield


def _refusal(folder: Path) -> str:
    try:
        owner = json.loads((folder / LOCK_FILE).read_text(encoding="utf-8"))
        holder = f"process {owner['pid']} on {owner['host']}"
    except (OSError, ValueError, KeyError):
        holder = "another process"
    return (
        f"{holder} is already running {folder}. Wait for it or end it, then run the same command."
    )
