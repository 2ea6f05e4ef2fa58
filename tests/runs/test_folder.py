from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dllmx.errors import ConfigError, RunError
from dllmx.metrics.samples import SampleRecord
from dllmx.runs.files import append_synced
from dllmx.runs.folder import RunFolder, find_run


def sample(name: str, **changes: Any) -> SampleRecord:
    values: dict[str, Any] = {
        "id": name, "prompt_ids": [1], "output_ids": [2], "text": name, "answer": None,
        "correct": False, "reference": None, "nfe": 1, "counters": {}, "seconds": 0.1, "batch": 0,
        "batch_size": 1, "tokens_all": 1, "tokens_non_eos": 1, "tokens_after_stop": 0,
        "eos_position": None, "empty": False, "peak_memory_bytes": 1,
    }  # fmt: skip
    return SampleRecord(**(values | changes))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def ids(records: list[SampleRecord]) -> list[str]:
    return [record.id for record in records]


def test_samples_are_read_back_in_order(folder: RunFolder) -> None:
    folder.append([sample("a")])
    folder.append([sample("b"), sample("c")])
    assert ids(folder.read_samples()) == ["a", "b", "c"]


def test_any_cut_of_the_last_line_is_removed_and_only_that_line(folder: RunFolder) -> None:
    folder.append([sample("a"), sample("b")])
    whole = folder.samples.read_bytes()
    first = len(sample("a").to_line())
    for length in (first, first + 1, first + 40, len(whole) - 2, len(whole) - 1):
        folder.samples.write_bytes(whole[:length])
        assert ids(folder.recover_samples()) == ["a"]
        assert folder.samples.read_bytes() == whole[:first]
        folder.append([sample("b")])
        assert folder.samples.read_bytes() == whole


def test_a_last_line_of_zeros_is_cut(folder: RunFolder) -> None:
    folder.append([sample("a")])
    append_synced(folder.samples, b"\0" * 20 + b"\n")
    assert ids(folder.recover_samples()) == ["a"]


def test_reading_changes_nothing(folder: RunFolder) -> None:
    folder.append([sample("a")])
    append_synced(folder.samples, b'{"id":')
    before = folder.samples.read_bytes()
    assert ids(folder.read_samples()) == ["a"]
    assert folder.samples.read_bytes() == before


def test_damage_in_the_middle_is_an_error_that_names_the_line(folder: RunFolder) -> None:
    folder.append([sample("a")])
    append_synced(folder.samples, b"rubbish\n")
    folder.append([sample("b")])
    with pytest.raises(RunError, match=r"line 2 is damaged.*overwrite=true"):
        folder.recover_samples()


def test_the_trace_is_cut_to_the_last_kept_sample(folder: RunFolder) -> None:
    end = append_synced(folder.trace, b"first")
    folder.append([sample("a", trace_end=end)])
    append_synced(folder.trace, b"second, of a sample that was never finished")
    folder.recover_samples()
    assert folder.trace.read_bytes() == b"first"


def test_the_status_follows_from_the_files(folder: RunFolder) -> None:
    assert folder.status == "unfinished"
    folder.error.write_text("why")
    assert folder.status == "failed"
    folder.metrics.write_text("{}")
    assert folder.status == "finished"
    folder.clear()
    assert folder.status == "unfinished"


def test_a_run_is_found_by_path_name_and_unique_prefix(tmp_path: Path) -> None:
    for name in ("model-a-task-1", "model-a-task-12", "model-b-task-2"):
        path = tmp_path / "runs" / name
        path.mkdir(parents=True)
        (path / "config.yaml").write_text("{}")
    assert find_run("model-b", tmp_path).path.name == "model-b-task-2"
    assert find_run("model-a-task-1", tmp_path).path.name == "model-a-task-1"
    assert (
        find_run(str(tmp_path / "runs" / "model-b-task-2"), tmp_path).path.name == "model-b-task-2"
    )
    with pytest.raises(ConfigError, match="fits 2 runs: model-a-task-1, model-a-task-12"):
        find_run("model-a", tmp_path)
    with pytest.raises(ConfigError, match="no run called other"):
        find_run("other", tmp_path)
    with pytest.raises(ConfigError, match="no run called"):
        find_run("", tmp_path)
