from __future__ import annotations

import pytest
from commanding import SMALL, Command


@pytest.fixture
def two_runs(dllmx: Command) -> Command:
    dllmx("run", "-m", *SMALL, "policy=baseline,parallel")
    return dllmx


def test_two_runs_are_shown_side_by_side(two_runs: Command) -> None:
    result = two_runs("compare", "tiny-llada-base", "tiny-llada-par")
    assert result.status == 0
    for words in ("TPF", "TPS", "accuracy B - A", "McNemar exact p", "4 problems in both"):
        assert words in result.out
    assert "commit.name" in result.out
    assert "outputs are identical" in result.out


def test_a_run_equals_itself(two_runs: Command) -> None:
    folder = str(two_runs.run_folders()[0])
    result = two_runs("compare", folder, folder)
    assert "4 of 4 outputs are identical" in result.out
    assert "All settings are equal." in result.out
    assert "First difference" not in result.out


def test_the_first_difference_is_shown_with_both_texts(two_runs: Command) -> None:
    import json

    first, second = two_runs.run_folders()
    samples = (second / "samples.jsonl").read_text().splitlines()
    changed = json.loads(samples[1])
    changed["output_ids"][3] = 77
    (second / "samples.jsonl").write_text("\n".join([samples[0], json.dumps(changed)]) + "\n")
    (first / "samples.jsonl").write_text("\n".join([samples[0], samples[1]]) + "\n")
    result = two_runs("compare", first.name, second.name)
    position = len(changed["prompt_ids"]) + 3
    assert f"First difference: problem {changed['id']}, position {position}" in result.out
    assert ", 77 in B" in result.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tiny-llada-base"], "compare takes two runs, not 1"),
        (["tiny-llada", "tiny-llada-base"], "fits 2 runs"),
        (["absent", "tiny-llada-base"], "no run called absent"),
        (["a", "b", "output=elsewhere"], "no run called a in elsewhere/runs"),
    ],
)
def test_wrong_arguments_are_explained(two_runs: Command, arguments: list[str], said: str) -> None:
    result = two_runs("compare", *arguments)
    assert result.status == 2
    assert said in result.err
