"""Arguments of commands that take keys of their own beside the overrides of a run."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from dllmx.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Arguments:
    """``own``: the command's keys; ``overrides``: everything else, for the configuration."""

    own: Mapping[str, str]
    overrides: list[str]


def wants_help(argv: list[str], text: str) -> bool:
    """Print ``text`` when ``argv`` asks for help; returns whether it did."""
    asked = any(argument in ("-h", "--help") for argument in argv)
    if asked:
        sys.stdout.write(text)
    return asked


def split_arguments(argv: list[str], own: Collection[str], command: str) -> Arguments:
    """Take the ``key=value`` arguments whose key is in ``own`` out of ``argv``.

    Raises ConfigError for a flag, since these commands have none, and for an argument without =.
    """
    taken: dict[str, str] = {}
    overrides: list[str] = []
    for argument in argv:
        key, sign, value = argument.partition("=")
        if not sign and not argument.startswith("~"):
            raise ConfigError(_not_an_override(argument, own, command))
        if key in own:
            taken[key] = value
        else:
            overrides.append(argument)
    return Arguments(taken, overrides)


def refuse_keys(overrides: list[str], refused: Mapping[str, str], command: str) -> None:
    """Raise ConfigError for an override that the command would have no use for."""
    for override in overrides:
        key = override.lstrip("+~").partition("=")[0].partition(".")[0]
        if key in refused:
            raise ConfigError(f"{override} has no effect on dllmx {command}: {refused[key]}.")


def parse_flag(key: str, value: str) -> bool:
    """``true`` or ``false``. Raises ConfigError for anything else."""
    if value.lower() not in ("true", "false"):
        raise ConfigError(f"{key}={value} is not an option. Choose one of: true, false.")
    return value.lower() == "true"


def parse_number(key: str, value: str, least: float) -> float:
    """A number of at least ``least``. Raises ConfigError for anything else."""
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not number >= least:
        raise ConfigError(f"{key}={value} must be a number, {least:g} or more.")
    return number


def _not_an_override(argument: str, own: Collection[str], command: str) -> str:
    near = difflib.get_close_matches(argument.lstrip("-"), own, n=1)
    hint = f"Did you mean {near[0]}=...?" if near else f"See: dllmx {command} --help"
    return f"cannot read the argument {argument!r}. Write key=value. {hint}"
