from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from building import decode_config

from dllmx.config.schema import LoggerConfig, RunConfig
from dllmx.runs.identity import (
    PIECE_BYTES,
    PIECES,
    checkpoint_fingerprint,
    file_fingerprint,
    run_hash,
    sample_seed,
)
from dllmx.tasks.problem import Problem

PROBLEMS = [Problem("a", "2 + 2", 4)]


@pytest.fixture
def config() -> RunConfig:
    sampler = {"name": "blocks", "gen_length": 8, "block_length": 4}
    return decode_config(sampler, {"name": "none"}, {"name": "quota"})


def hashed(config: RunConfig) -> str:
    return run_hash(config, PROBLEMS, None)


def test_places_are_no_part_of_a_run(config: RunConfig) -> None:
    moved = replace(config, output="elsewhere", overwrite=True, logger=LoggerConfig("wandb"))
    moved = replace(moved, model=replace(config.model, path="/another/folder"))
    assert hashed(moved) == hashed(config)


@pytest.mark.parametrize("change", [{"seed": 1}, {"batch_size": 2}, {"trace": True}])
def test_whatever_decides_results_changes_the_hash(
    config: RunConfig, change: dict[str, int]
) -> None:
    assert hashed(replace(config, **change)) != hashed(config)  # type: ignore[arg-type]


def test_parts_and_defaults_change_the_hash(config: RunConfig) -> None:
    warmer = replace(config, sampler=replace(config.sampler, temperature=0.5))
    same = replace(config, sampler=replace(config.sampler, temperature=0.0))
    assert hashed(warmer) != hashed(config) == hashed(same)


def test_the_problems_are_part_of_a_run(config: RunConfig) -> None:
    assert run_hash(config, [Problem("a", "2 + 2", 5)], None) != hashed(config)


def test_the_hash_is_the_same_in_another_process() -> None:
    code = "from dllmx.runs.identity import digest; print(digest({'b': [1, None], 'a': 'x'}))"
    seeds = ("1", "2")
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in seeds
    }
    assert len(printed) == 1


def test_a_checkpoint_is_known_by_its_content_not_by_its_place(tmp_path: Path) -> None:
    prints = []
    for name, content in (("one", b"abc"), ("two", b"abc"), ("tuned", b"abd"), ("more", b"abcd")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(content)
        prints.append(checkpoint_fingerprint(folder))
    assert prints[0] == prints[1]
    assert prints[0] != prints[2]
    assert prints[0] != prints[3]


@pytest.mark.parametrize("position", [0, 3_000_000, 5_999_999])
def test_a_change_anywhere_in_a_file_of_a_few_megabytes_is_seen(
    tmp_path: Path, position: int
) -> None:
    content = bytearray(PIECES * PIECE_BYTES)
    changed = bytearray(content)
    changed[position * len(content) // 6_000_000] = 1
    (tmp_path / "a").write_bytes(content)
    (tmp_path / "b").write_bytes(changed)
    assert file_fingerprint(tmp_path / "a") != file_fingerprint(tmp_path / "b")


def test_sample_seeds_depend_on_seed_and_problem_only() -> None:
    assert sample_seed(0, "a") == sample_seed(0, "a")
    assert len({sample_seed(0, "a"), sample_seed(1, "a"), sample_seed(0, "b")}) == 3


def test_the_tokenizer_of_a_checkpoint_is_part_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "a"}')
    before = checkpoint_fingerprint(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "b"}')
    assert checkpoint_fingerprint(tmp_path) != before
    (tmp_path / "README.md").write_text("words decide nothing")
    assert set(checkpoint_fingerprint(tmp_path)) == {"config.json", "tokenizer_config.json"}
