from __future__ import annotations

from pathlib import Path

import pytest

from dllmx.errors import ConfigError
from dllmx.runs.files import append_synced, make_writable_folder, write_atomically


def test_an_atomic_write_replaces_the_content_and_leaves_no_scratch_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.json"
    write_atomically(path, "old")
    write_atomically(path, "new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_appending_returns_the_new_length(tmp_path: Path) -> None:
    assert append_synced(tmp_path / "file", b"abc") == 3
    assert append_synced(tmp_path / "file", b"de") == 5


def test_a_folder_below_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ConfigError, match="output: cannot write to .*Choose another: output=FOLDER"
    ):
        make_writable_folder(tmp_path / "file" / "runs", "output")


def test_a_folder_is_made_with_its_parents_and_stays_empty(tmp_path: Path) -> None:
    folder = make_writable_folder(tmp_path / "a" / "b", "output")
    assert list(folder.iterdir()) == []
