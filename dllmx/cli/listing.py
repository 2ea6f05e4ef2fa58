"""``dllmx list``: every option of every group, with one line and its source."""

from __future__ import annotations

import difflib
import sys
from dataclasses import dataclass
from importlib.resources import files
from itertools import takewhile
from typing import TYPE_CHECKING

from dllmx.errors import ConfigError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

GROUPS = ("model", "sampler", "cache", "commit", "policy", "task", "hardware", "logger")
SOURCE = "Source:"

HELP = """\
Show the options that can be chosen on the command line, each with one line and its source.

Usage: dllmx list [GROUP [OPTION]]

  dllmx list                   every group
  dllmx list policy            one group
  dllmx list cache dual        one option: its keys, what they mean and their defaults
"""


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a group, as its YAML file describes it."""

    group: str
    name: str
    summary: str
    source: str
    text: str


def main(argv: list[str]) -> int:
    """Run the command; returns its exit status."""
    if any(argument in ("-h", "--help") for argument in argv):
        sys.stdout.write(HELP)
        return 0
    if len(argv) > 2:
        raise ConfigError(f"list takes a group and an option, not {len(argv)} arguments: {argv}")
    if len(argv) == 2:
        sys.stdout.write(_find_option(_known_group(argv[0]), argv[1]).text)
        return 0
    _print_groups([_known_group(argv[0])] if argv else list(GROUPS))
    return 0


def options_of(group: str) -> list[Option]:
    """The options of a group, by name."""
    folder = files("dllmx.conf").joinpath(group)
    found = [entry for entry in folder.iterdir() if entry.name.endswith(".yaml")]
    options = [_read_option(group, entry) for entry in found]
    return sorted(options, key=lambda option: option.name)


def _read_option(group: str, entry: Traversable) -> Option:
    text = entry.read_text(encoding="utf-8")
    comments = [
        line.lstrip("# ")
        for line in takewhile(lambda line: line.startswith("#"), text.splitlines())
        if not line.startswith("# @")
    ]
    summary, source = [*comments, "", ""][:2]
    source = source.removeprefix(SOURCE).strip()
    return Option(group, entry.name.removesuffix(".yaml"), summary, source, text)


def _known_group(name: str) -> str:
    if name not in GROUPS:
        near = difflib.get_close_matches(name, GROUPS, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"Groups: {', '.join(GROUPS)}."
        raise ConfigError(f"{name} is not a group of options. {hint}")
    return name


def _find_option(group: str, name: str) -> Option:
    options = {option.name: option for option in options_of(group)}
    if name not in options:
        near = difflib.get_close_matches(name, options, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"Options: {', '.join(options)}."
        raise ConfigError(f"{group}={name} is not an option. {hint}")
    return options[name]


def _print_groups(groups: list[str]) -> None:
    from dllmx.cli.console import results
    from dllmx.cli.tables import text_table

    rows = [
        [option.group if index == 0 else "", option.name, option.summary, option.source]
        for group in groups
        for index, option in enumerate(options_of(group))
    ]
    results().print(text_table(["group", "option", "what it is", "source"], rows))
