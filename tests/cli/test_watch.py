from __future__ import annotations

import pytest
from commanding import CHECKPOINT, SMALL, Command

MODEL = (f"model.path={CHECKPOINT}", "model.chat=false")
FAST = ("--speed", "0")


def test_a_live_decode_is_one_line_a_step(dllmx: Command) -> None:
    result = dllmx("watch", *MODEL, *FAST, "policy=baseline")
    assert result.status == 0
    steps = [line for line in result.out.splitlines() if line.startswith("step ")]
    assert len(steps) == 32
    assert "NFE 1  31 masks left  full" in steps[0]
    assert "0 masks left" in steps[-1]
    assert not (dllmx.folder / "outputs").exists()


def test_ones_own_prompt_and_another_problem_can_be_watched(dllmx: Command) -> None:
    own = dllmx("watch", *MODEL, *FAST, "prompt=tom has 4 apples")
    assert "tom has 4 apples" in own.out
    first, second = (dllmx("watch", *MODEL, *FAST, f"problem={n}") for n in (0, 1))
    assert first.out.splitlines()[0] != second.out.splitlines()[0]


def test_a_recorded_decode_plays_as_it_went(dllmx: Command) -> None:
    live = dllmx("watch", *MODEL, *FAST, "problem=2", "policy=fast-dllm")
    dllmx("run", *SMALL, "trace=true", "policy=fast-dllm")
    sample = "tiny-math-0-0002"
    played = dllmx("watch", "run=tiny-llada-fast", f"sample={sample}", "speed=0")
    assert played.status == 0
    assert played.out.splitlines()[1:] == live.out.splitlines()[1:]
    first = dllmx("watch", "run=tiny-llada-fast", "speed=0")
    assert "tiny-math-0-0000" in first.out


def test_a_terminal_gets_a_picture_with_colours(
    dllmx: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rich.console import Console

    console = Console(force_terminal=True, width=80, color_system="truecolor", record=True)
    monkeypatch.setattr("dllmx.cli.player.results", lambda: console)
    assert dllmx("watch", *MODEL, *FAST).status == 0
    picture = console.export_text(styles=True)
    assert "·" in picture
    assert "masks left" in picture
    assert "\x1b[1;30;102m" in picture  # fresh tokens are black on bright green


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--speed"], "--speed needs a number"),
        (["--speed=fast"], "speed=fast must be a number"),
        (["speed=-1"], "0 or more"),
        (["problem=100000"], "problem=100000: task=tiny-math has 0 to"),
        (["problem=-1"], "problem=-1"),
        (["prompt=x", "problem=1"], "problem= has no effect"),
        (["sample=1"], "sample= has no effect on a live decode"),
        (["trace=true"], "trace=true has no effect"),
        (["batch_size=2"], "batch_size=2 has no effect"),
        (["run=none"], "no run called none"),
        (["--sped", "3"], "cannot read the argument '--sped'"),
    ],
)
def test_wrong_arguments_are_explained(dllmx: Command, arguments: list[str], said: str) -> None:
    overrides = () if arguments[0].startswith("run=") else MODEL
    result = dllmx("watch", *overrides, *arguments)
    assert result.status == 2
    assert said in result.err


def test_a_run_without_trace_says_how_to_record_one(dllmx: Command) -> None:
    dllmx("run", *SMALL)
    result = dllmx("watch", "run=tiny-llada")
    assert result.status == 2
    assert "dllmx run trace=true" in result.err


def test_an_unknown_sample_is_told_apart(dllmx: Command) -> None:
    dllmx("run", *SMALL, "trace=true")
    result = dllmx("watch", "run=tiny-llada", "sample=absent")
    assert result.status == 2
    assert "It has: tiny-math-0-0000" in result.err
