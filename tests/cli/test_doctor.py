from __future__ import annotations

import pytest
from commanding import Command

from dllmx.cli.listing import options_of


def test_it_reports_every_model_and_the_machine(dllmx: Command) -> None:
    result = dllmx("doctor")
    for option in options_of("model"):
        assert f"model={option.name}" in result.out
    for words in ("python", "torch", "hardware=cpu", "hardware=cuda", "triton", "wandb", "git"):
        assert words in result.out


def test_what_is_missing_comes_with_the_command_that_fixes_it(
    dllmx: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(dllmx.folder / "hub"))
    result = dllmx("doctor")
    assert "hf download GSAI-ML/LLaDA-8B-Instruct" in result.out
    assert "wandb login" in result.out


def test_an_output_folder_that_cannot_be_written_is_broken(dllmx: Command) -> None:
    (dllmx.folder / "file").write_text("")
    result = dllmx("doctor", "output=file/x")
    assert result.status == 1
    assert "output=file/x" in result.out.splitlines()[-1]


def test_it_takes_no_other_argument(dllmx: Command) -> None:
    assert dllmx("doctor", "now").status == 2
