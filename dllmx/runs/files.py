"""Writing files so that a kill at any moment leaves either the old content or the new."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from dllmx.errors import ConfigError


def write_atomically(path: Path, text: str) -> None:
    """Replace the content of ``path`` by ``text`` in one step that survives a crash."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with scratch.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    _sync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON, atomically."""
    write_atomically(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def append_synced(path: Path, data: bytes) -> int:
    """Append ``data`` and wait until it is on disk. Returns the new length of the file in bytes."""
    with path.open("ab") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
        return stream.tell()


def truncate(path: Path, length: int) -> None:
    """Cut the file to ``length`` bytes."""
    with path.open("r+b") as stream:
        stream.truncate(length)
        stream.flush()
        os.fsync(stream.fileno())


def make_writable_folder(path: Path, key: str) -> Path:
    """Create folder ``path``, prove that a file can be written there, and return it.

    ``key`` is the configuration key that names the folder, for the message. Raises ConfigError.
    """
    probe = path / f".writable.{os.getpid()}"
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ConfigError(
            f"{key}: cannot write to {path} ({error.strerror}). Choose another: {key}=FOLDER"
        ) from None
    return path


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
