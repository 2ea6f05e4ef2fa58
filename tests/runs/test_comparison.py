from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dllmx.errors import ConfigError
from dllmx.metrics.samples import SampleRecord
from dllmx.runs.comparison import (
    compare_runs,
    count_pairs,
    differing_settings,
    find_first_difference,
    flatten,
    pair_samples,
)
from dllmx.runs.folder import RunFolder

BASE = SampleRecord(
    id="a", prompt_ids=[1, 2], output_ids=[5, 6, 7], text="x", answer="x", correct=True,
    reference="x", nfe=3, counters={}, seconds=1.0, batch=0, batch_size=1, tokens_all=3,
    tokens_non_eos=3, tokens_after_stop=0, eos_position=None, empty=False, peak_memory_bytes=1,
)  # fmt: skip


def run(path: Path, samples: list[SampleRecord], settings: str) -> RunFolder:
    path.mkdir()
    folder = RunFolder(path)
    folder.append(samples)
    folder.config.write_text(settings)
    folder.description.write_text(json.dumps({"attempts": [{"machine": {"python": "3.11"}}]}))
    return folder


def test_only_equal_problems_with_equal_prompts_are_paired() -> None:
    second = [replace(BASE, prompt_ids=[9]), replace(BASE, id="c")]
    assert pair_samples([BASE, replace(BASE, id="c")], second) == [
        (replace(BASE, id="c"), replace(BASE, id="c"))
    ]


def test_pairs_are_counted_by_who_is_right() -> None:
    wrong = replace(BASE, correct=False)
    counts = count_pairs([(BASE, BASE), (BASE, wrong), (BASE, wrong), (wrong, BASE)])
    assert (counts.both, counts.only_first, counts.only_second, counts.neither) == (1, 2, 1, 0)


@pytest.mark.parametrize(
    ("other", "index", "tokens"),
    [([5, 9, 7], 1, (6, 9)), ([5, 6], 2, (7, None)), ([5, 6, 7, 8], 3, (None, 8))],
)
def test_the_first_difference_names_problem_position_and_tokens(
    other: list[int], index: int, tokens: tuple[int | None, int | None]
) -> None:
    second = replace(BASE, id="b")
    pairs = [(BASE, BASE), (second, replace(second, output_ids=other))]
    found = find_first_difference(pairs)
    assert found is not None
    assert (found.first.id, found.index) == ("b", index)
    assert (found.first_token, found.second_token) == tokens


def test_equal_outputs_have_no_difference() -> None:
    assert find_first_difference([(BASE, BASE)]) is None


def test_settings_are_compared_flat_and_absent_ones_shown() -> None:
    first = flatten({"cache": {"name": "dual", "k": 1}, "seed": 0})
    second = flatten({"cache": {"name": "none"}, "seed": 0})
    assert differing_settings(first, second) == [
        ("cache.name", "dual", "none"),
        ("cache.k", "1", "-"),
    ]


def test_two_runs_are_compared_on_what_both_answered(tmp_path: Path) -> None:
    faster = replace(BASE, nfe=1, seconds=0.5, correct=False)
    first = run(tmp_path / "a", [BASE, replace(BASE, id="b")], "seed: 0\noutput: here\n")
    second = run(tmp_path / "b", [faster], "seed: 1\noutput: there\n")
    found = compare_runs(first, second)
    assert (found.counts.only_first, found.counts.total, found.unpaired) == (1, 1, 1)
    assert (found.first.tpf, found.second.tpf) == (1, 3)
    assert (found.first.tps, found.second.tps) == (3, 6)
    assert found.settings == [("seed", "0", "1")]
    assert found.identical == 1
    assert found.p_value == 1.0


def test_runs_of_different_problems_cannot_be_compared(tmp_path: Path) -> None:
    first = run(tmp_path / "a", [BASE], "seed: 0\n")
    second = run(tmp_path / "b", [replace(BASE, id="z")], "seed: 0\n")
    with pytest.raises(ConfigError, match="share no problem"):
        compare_runs(first, second)
