from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from commanding import PROGRAM, Command, complete

from dllmx.cli.main import COMMANDS, available_commands
from dllmx.version import VERSION

HEAVY = ("torch", "transformers", "pandas", "wandb", "matplotlib")


def test_help_names_every_command(dllmx: Command) -> None:
    result = dllmx("--help")
    assert result.status == 0
    assert all(f"  {name} " in result.out for name in available_commands())


def test_no_argument_is_help(dllmx: Command) -> None:
    assert dllmx() == dllmx("--help")


def test_version(dllmx: Command) -> None:
    assert dllmx("--version").out == f"dllmx {VERSION}\n"


@pytest.mark.parametrize("command", ["run", "decode", "watch", "compare", "list", "doctor"])
def test_every_command_explains_itself(dllmx: Command, command: str) -> None:
    result = dllmx(command, "--help")
    assert result.status == 0
    assert f"Usage: dllmx {command}" in result.out


def test_an_unknown_command_gets_a_suggestion(dllmx: Command) -> None:
    result = dllmx("rum")
    assert (result.status, result.err) == (
        2,
        "error: rum is not a command of dllmx. Did you mean run?\n",
    )


def test_an_override_without_command_is_understood(dllmx: Command) -> None:
    result = dllmx("policy=baseline")
    assert result.status == 2
    assert "Did you mean: dllmx run policy=baseline" in result.err


def test_a_module_is_named_for_every_command() -> None:
    assert all(module.startswith("dllmx.cli.") for module, _ in COMMANDS.values())


def test_debug_shows_the_traceback_and_plain_errors_do_not(dllmx: Command) -> None:
    assert "Traceback" not in dllmx("rum").err
    assert "Traceback" in dllmx("rum", "--debug").err


def test_an_interrupt_says_how_to_go_on(dllmx: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(argv: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("dllmx.cli.listing.main", interrupted)
    result = dllmx("list")
    assert result.status == 130
    assert "The same command goes on" in result.err


def test_an_unforeseen_error_is_one_message_and_status_one(
    dllmx: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(argv: list[str]) -> int:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("dllmx.cli.listing.main", broken)
    result = dllmx("list")
    assert result.status == 1
    assert result.err.splitlines() == [
        "internal error: ZeroDivisionError: oh",
        "Run it again with --debug to see where.",
    ]


@pytest.mark.parametrize(("arguments", "limit"), [(["--help"], 0.5), (["list"], 1.0)])
def test_quick_commands_are_quick_as_a_user_types_them(arguments: list[str], limit: float) -> None:
    durations = []
    for _ in range(5):
        begin = time.perf_counter()
        subprocess.run([str(PROGRAM), *arguments], check=True, capture_output=True)
        durations.append(time.perf_counter() - begin)
    assert min(durations) < limit


@pytest.mark.parametrize("arguments", [["--help"], ["list"], ["run", "--help"]])
def test_quick_commands_import_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys; from dllmx.cli.main import run_command_line;"
        f"run_command_line({arguments!r}); print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(HEAVY).isdisjoint(done.stderr.split())


def test_the_program_leaves_with_the_status_of_the_command(tmp_path: Path) -> None:
    assert complete("list", "policies", folder=tmp_path).status == 2
    assert complete("list", "policy", folder=tmp_path).status == 0
