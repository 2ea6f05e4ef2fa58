from __future__ import annotations

from pathlib import Path

import pytest
from commanding import Command

from dllmx.cli.listing import GROUPS, options_of
from dllmx.cli.main import run_command_line

CONF = Path(__file__).parents[2] / "conf"


@pytest.mark.parametrize("group", GROUPS)
def test_every_option_has_a_line_and_a_source(group: str) -> None:
    options = options_of(group)
    assert {option.name for option in options} == {path.stem for path in (CONF / group).iterdir()}
    for option in options:
        assert option.summary
        assert not option.summary.startswith(("Source", "@"))
        assert option.source


def test_every_group_of_the_configuration_is_listed() -> None:
    assert {path.name for path in CONF.iterdir() if path.is_dir()} - {"__pycache__"} == set(GROUPS)


def test_the_list_shows_all_groups_and_options(dllmx: Command) -> None:
    result = dllmx("list")
    assert result.status == 0
    for group in GROUPS:
        assert all(option.name in result.out for option in options_of(group))


def test_one_group_and_one_option_can_be_shown(dllmx: Command) -> None:
    assert "tiny-llada" not in dllmx("list", "policy").out
    shown = dllmx("list", "logger", "auto")
    assert shown.out == (CONF / "logger" / "auto.yaml").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["polices"], "Did you mean policy?"),
        (["xyz"], "Groups: model"),
        (["cache", "duel"], "Did you mean dual?"),
        (["cache", "xyz"], "Options: "),
        (["cache", "dual", "now"], "list takes a group and an option"),
    ],
)
def test_unknown_names_are_explained(dllmx: Command, arguments: list[str], said: str) -> None:
    result = dllmx("list", *arguments)
    assert result.status == 2
    assert said in result.err


@pytest.mark.parametrize(
    "override", [f"{g}={o.name}" for g in GROUPS for o in options_of(g) if g != "logger"]
)
def test_every_listed_option_composes(override: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["run", override, "--cfg", "job"]) == 0
    assert "gen_length" in capsys.readouterr().out
