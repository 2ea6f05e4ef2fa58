from __future__ import annotations

from pathlib import Path

import pytest
from commanding import PROGRAM, Command, complete

from dllmx.cli.completion import without_command


@pytest.mark.parametrize(
    ("line", "shortened"),
    [
        ("dllmx run policy=fa", "dllmx policy=fa"),
        ("dllmx run -m policy=fa", "dllmx -m policy=fa"),
        ("dllmx policy=fa", "dllmx policy=fa"),
        ("dllmx ru", "dllmx ru"),
    ],
)
def test_the_command_is_taken_out_of_the_line(line: str, shortened: str) -> None:
    assert without_command(line) == shortened


def test_overrides_are_completed(dllmx: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMP_LINE", line := "dllmx run policy=fast")
    monkeypatch.setenv("COMP_POINT", str(len(line)))
    monkeypatch.setenv("_HYDRA_OLD_COMP", "")
    result = dllmx("-sc", "query=bash")
    assert result.status == 0
    assert {"policy=fast-dllm", "policy=fast-dllm-prefix"} <= set(result.out.split())


def test_the_installing_script_names_the_program(tmp_path: Path) -> None:
    result = complete("-sc", "install=bash", folder=tmp_path)
    assert result.status == 0
    assert PROGRAM.name in result.out
