"""Calls into Hydra, with its errors turned into one or two lines."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

from hydra import main as hydra_main
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from dllmx.cli.foreign_config import check_foreign_config
from dllmx.config.compose import compose, validate
from dllmx.config.schema import RunConfig
from dllmx.errors import ConfigError

_PLAIN_FLAGS = ("-m", "--multirun", "--resolve", "--hydra-help", "-sc", "--shell-completion")
_FLAGS_WITH_VALUE = ("--config-dir", "-cd", "--cfg", "-c", "--package", "-p", "--info", "-i")


def compose_run(overrides: list[str]) -> RunConfig:
    """The typed configuration of one run from its overrides. Raises ConfigError."""
    check_foreign_config(overrides)
    with readable_errors(overrides):
        cfg = compose(overrides)
    return validate(cfg)


def run_hydra(job: Callable[[DictConfig], None], argv: list[str]) -> None:
    """Compose and call ``job`` once, or once for every combination of a multirun.

    ``argv`` is Hydra's own command line: overrides and its flags. ``job`` must not raise: Hydra
    would print its own account of the error first. Raises ConfigError when nothing can be composed.
    """
    check_foreign_config(argv)
    GlobalHydra.instance().clear()
    saved_argv, saved_detail = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv, os.environ["HYDRA_FULL_ERROR"] = ["dllmx run", *flags_first(argv)], "1"
    try:
        with readable_errors(argv):
            hydra_main("pkg://dllmx.conf", "config", version_base="1.3")(job)()
    finally:
        sys.argv = saved_argv
        os.environ.pop("HYDRA_FULL_ERROR")
        if saved_detail is not None:
            os.environ["HYDRA_FULL_ERROR"] = saved_detail


def flags_first(argv: list[str]) -> list[str]:
    """The same arguments with flags before overrides: argparse wants the overrides in one piece.

    Raises ConfigError for a flag that ``run`` does not have.
    """
    known = (*_PLAIN_FLAGS, *_FLAGS_WITH_VALUE)
    for argument in argv:
        if argument.startswith("-") and argument.partition("=")[0] not in known:
            raise ConfigError(f"{argument} is not a flag of dllmx run. Flags: {', '.join(known)}")
    flags: list[str] = []
    overrides: list[str] = []
    for before, argument in zip(["", *argv], argv, strict=False):
        is_flag = argument.startswith("-") or before in _FLAGS_WITH_VALUE
        (flags if is_flag else overrides).append(argument)
    return [*flags, *overrides]


@contextmanager
def readable_errors(overrides: list[str]) -> Iterator[None]:
    """Turn the errors of composing ``overrides`` into a ConfigError of one or two lines."""
    try:
        yield
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(explain(error, overrides)) from error


def explain(error: Exception, overrides: list[str]) -> str:
    """What is wrong with the overrides, in one or two lines."""
    if isinstance(error, OverrideParseException):
        return _unreadable(error.override)
    text = str(error)
    for pattern, describe in _EXPLANATIONS:
        found = re.search(pattern, text, re.DOTALL)
        if found:
            return describe(found, overrides)
    return _first_lines(text)


def _unknown_option(found: re.Match[str], overrides: list[str]) -> str:
    group, option = found["path"].rsplit("/", 1)
    options = [name.strip() for name in found["options"].split("\n") if name.strip()]
    near = get_close_matches(option, options, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return f"{group}={option} is not an option.{hint}\nOptions of {group}: {', '.join(options)}"


def _unknown_key(found: re.Match[str], overrides: list[str]) -> str:
    key = found["key"].split("@")[0]
    section, _, name = key.rpartition(".")
    keys = [known.rpartition(".") for known in _allowed_keys(key, overrides)]
    siblings = {
        known: f"{where}.{known}".lstrip(".") for where, _, known in keys if where == section
    }
    elsewhere = {known: f"{where}.{known}".lstrip(".") for where, _, known in keys}
    for candidates in (siblings, elsewhere):
        near = get_close_matches(name, candidates, n=1)
        if near:
            return f"{key} is not a configuration key. Did you mean {candidates[near[0]]}?"
    known = f" Known: {', '.join(siblings.values())}." if siblings else ""
    return f"{key} is not a configuration key.{known}"


def _unreadable(override: str) -> str:
    return (
        f"cannot read the argument {override!r}. "
        "Write key=value, and put quotes around values with spaces or special characters."
    )


def _sweep_without_flag(found: re.Match[str], overrides: list[str]) -> str:
    return (
        f"{found['override']} names several values. "
        f"To run each of them: dllmx run -m {found['override']}"
    )


_NO_OPTION = r"Could not find '(?P<path>[^']+)'.*Available options in [^:]*:(?P<options>(\n\t\S*)*)"
_EXPLANATIONS: tuple[tuple[str, Callable[[re.Match[str], list[str]], str]], ...] = (
    (_NO_OPTION, _unknown_option),
    (r"Could not (?:override|delete from config\.) ?'(?P<key>[^'=]+)'", _unknown_key),
    (r"Ambiguous value for argument '(?P<override>[^']+)'", _sweep_without_flag),
)


def _allowed_keys(wrong: str, overrides: list[str]) -> list[str]:
    """Every key that could be set, from composing the overrides that do not set ``wrong``."""
    plain = [o for o in overrides if re.match(r"[\w/]+(@\w+)?=[^,]*$", o) and wrong not in o]
    try:
        cfg = compose(plain)
    except (HydraException, OmegaConfBaseException):
        return []
    values = OmegaConf.to_container(cfg)
    return _keys_of(values) if isinstance(values, dict) else []


def _keys_of(values: Mapping[Any, Any], prefix: str = "") -> list[str]:
    keys: list[str] = []
    for name, value in values.items():
        keys.append(f"{prefix}{name}")
        if isinstance(value, dict):
            keys += _keys_of(value, f"{prefix}{name}.")
    return keys


def _first_lines(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "\n".join(lines[:2])
