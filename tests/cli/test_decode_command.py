from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from commanding import CHECKPOINT, Command, complete

MODEL = (f"model.path={CHECKPOINT}", "model.chat=false")
PROMPTS = [
    {"id": "text", "prompt": "tom has 4 apples"},
    {"id": 2, "prompt_ids": [14, 58, 8, 24, 30]},
    {"id": "third", "prompt_ids": [14]},
]


@pytest.fixture
def prompts(dllmx: Command) -> Path:
    path = dllmx.folder / "prompts.jsonl"
    path.write_text("".join(json.dumps(prompt) + "\n" for prompt in PROMPTS))
    return path


def decode(dllmx: Command, *arguments: str) -> list[dict[str, Any]]:
    result = dllmx("decode", "input=prompts.jsonl", "output=out.jsonl", *MODEL, *arguments)
    assert result.status == 0, result.err
    return [json.loads(line) for line in (dllmx.folder / "out.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("policy", ["baseline", "parallel", "fast-dllm", "fast-dllm-prefix"])
def test_the_steps_of_every_policy_lead_to_its_answer(
    dllmx: Command, prompts: Path, policy: str
) -> None:
    for line in decode(dllmx, f"policy={policy}"):
        start, canvas = len(line["prompt_ids"]), {}
        for step in line["steps"]:
            assert all(position >= start for position, _ in step["commit"])
            canvas |= dict(step["commit"])
            rows = step["rows"]
            length = start + len(line["output_ids"])
            assert step["full"] == ((rows if isinstance(rows, int) else len(rows)) == length)
        assert [canvas[start + i] for i in range(len(canvas))] == line["output_ids"]
        assert line["nfe"] == len(line["steps"]) == line["counters"]["nfe"]


def test_ids_and_order_are_kept(dllmx: Command, prompts: Path) -> None:
    assert [line["id"] for line in decode(dllmx)] == ["text", 2, "third"]


def test_the_generation_length_is_that_of_the_sampler(dllmx: Command, prompts: Path) -> None:
    lines = decode(dllmx, "sampler.gen_length=8", "sampler.block_length=4")
    assert [len(line["output_ids"]) for line in lines] == [8, 8, 8]


def test_a_batch_changes_nothing(dllmx: Command, prompts: Path) -> None:
    singles = decode(dllmx)
    batched = decode(dllmx, "batch_size=3", "overwrite=true")
    for single, one in zip(singles, batched, strict=True):
        for key in ("id", "output_ids", "nfe", "text"):
            assert one[key] == single[key]
        commits = [step["commit"] for step in single["steps"]]
        assert [step["commit"] for step in one["steps"]] == commits


def test_standard_input_and_output_are_a_pipe(
    dllmx: Command, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(prompts.read_text()))
    result = dllmx("decode", "input=-", "output=-", *MODEL)
    assert result.status == 0
    assert [json.loads(line)["id"] for line in result.out.splitlines()] == ["text", 2, "third"]


def test_it_works_as_a_user_types_it(dllmx: Command, prompts: Path) -> None:
    arguments = ("input=prompts.jsonl", "output=out.jsonl", *MODEL, "policy=parallel")
    result = complete("decode", *arguments, folder=dllmx.folder)
    assert (result.status, result.out) == (0, "")
    assert len((dllmx.folder / "out.jsonl").read_text().splitlines()) == 3


def test_an_output_that_exists_is_kept_unless_told_otherwise(dllmx: Command, prompts: Path) -> None:
    (dllmx.folder / "out.jsonl").write_text("precious\n")
    result = dllmx("decode", "input=prompts.jsonl", "output=out.jsonl", *MODEL)
    assert result.status == 2
    assert "overwrite=true" in result.err
    assert (dllmx.folder / "out.jsonl").read_text() == "precious\n"
    assert len(decode(dllmx, "overwrite=true")) == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["output=out.jsonl"], "input= is missing"),
        (["input=prompts.jsonl"], "output= is missing"),
        (["input=absent.jsonl", "output=out.jsonl"], "input=absent.jsonl cannot be read"),
        (["input=prompts.jsonl", "output=no/folder/out.jsonl"], "cannot be written"),
        (["input=prompts.jsonl", "output=out.jsonl", "logger=none"], "logger=none has no effect"),
        (["input=prompts.jsonl", "output=out.jsonl", "trace=true"], "trace=true has no effect"),
        (["input=prompts.jsonl", "output=out.jsonl", "overwrite=maybe"], "overwrite=maybe"),
        (["input=prompts.jsonl", "output=out.jsonl", "-m"], "cannot read the argument '-m'"),
        (["input=prompts.jsonl", "output=out.jsonl", "policy=x"], "Options of policy"),
        (["inputs=prompts.jsonl", "output=out.jsonl"], "input= is missing"),
    ],
)
def test_wrong_arguments_are_explained(
    dllmx: Command, prompts: Path, arguments: list[str], said: str
) -> None:
    result = dllmx("decode", *arguments)
    assert result.status == 2
    assert said in result.err


def test_a_bad_line_is_found_before_the_model_loads(
    dllmx: Command, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts.write_text(prompts.read_text() + '{"id": "four"}\n')
    monkeypatch.setattr("dllmx.runs.models.obtain_model", None)
    result = dllmx("decode", "input=prompts.jsonl", "output=out.jsonl", *MODEL)
    assert result.status == 2
    assert "prompts.jsonl line 4 needs either prompt or prompt_ids" in result.err
    assert not (dllmx.folder / "out.jsonl").exists()


def test_an_id_outside_the_vocabulary_is_found_before_the_model_loads(
    dllmx: Command, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts.write_text('{"id": 1, "prompt_ids": [82]}\n')
    monkeypatch.setattr("dllmx.runs.models.obtain_model", None)
    result = dllmx("decode", "input=prompts.jsonl", "output=out.jsonl", *MODEL)
    assert result.status == 2
    assert "line 1: id 82" in result.err
    assert "0 to 81" in result.err


def test_a_refused_command_leaves_the_old_output_alone(dllmx: Command, prompts: Path) -> None:
    out = dllmx.folder / "out.jsonl"
    out.write_text("kept\n")
    wrong = ("hardware=cuda",)
    arguments = ("input=prompts.jsonl", "output=out.jsonl", "overwrite=true", *MODEL)
    assert dllmx("decode", *arguments, *wrong).status == 2
    assert out.read_text() == "kept\n"


def test_the_output_may_not_be_the_input(dllmx: Command, prompts: Path) -> None:
    before = prompts.read_text()
    arguments = ("input=prompts.jsonl", "output=prompts.jsonl", "overwrite=true", *MODEL)
    result = dllmx("decode", *arguments)
    assert (result.status, prompts.read_text()) == (2, before)
    assert "is the input itself" in result.err


def test_line_separators_inside_a_string_do_not_end_a_line(dllmx: Command, prompts: Path) -> None:
    line = json.dumps({"id": "a\u2028b\x85c", "prompt_ids": [14]}, ensure_ascii=False)
    prompts.write_text("\ufeff" + line + "\n", encoding="utf-8")
    result = dllmx("decode", "input=prompts.jsonl", "output=out.jsonl", *MODEL)
    assert result.status == 0, result.err


def test_half_a_surrogate_pair_is_named_before_the_model_loads(
    dllmx: Command, prompts: Path
) -> None:
    prompts.write_text('{"id": 1, "prompt": "\\ud800"}\n')
    result = dllmx("decode", "input=prompts.jsonl", "output=out.jsonl", *MODEL)
    assert result.status == 2
    assert "line 1" in result.err
    assert "surrogate" in result.err


def test_a_seed_of_its_own_decides_the_draws_of_a_line(dllmx: Command, prompts: Path) -> None:
    lines = [
        {"id": name, "prompt_ids": [14, 58, 8], "seed": n}
        for name, n in zip("abc", (5, 5, 6), strict=True)
    ]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = decode(dllmx, "policy=baseline", "commit.score=random")
    first, same, other = ([step["commit"] for step in line["steps"]] for line in found)
    assert first == same != other
