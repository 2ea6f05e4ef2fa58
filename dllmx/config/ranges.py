"""Checks of single configuration values; every message names the key, the value and the range."""

from __future__ import annotations

from collections.abc import Collection

from dllmx.errors import ConfigError


def check_choice(key: str, value: str, allowed: Collection[str]) -> None:
    """Raise ConfigError unless ``value`` is one of ``allowed``."""
    if value not in allowed:
        options = ", ".join(allowed)
        raise ConfigError(f"{key}={value} is not an option. Choose one of: {options}.")


def check_at_least(key: str, value: float | None, least: float) -> None:
    """Raise ConfigError if ``value`` is a number below ``least``; None always passes."""
    if value is not None and not value >= least:
        raise ConfigError(f"{key}={value} is too small. It must be {least} or more.")


def check_between(key: str, value: float | None, least: float, most: float) -> None:
    """Raise ConfigError if ``value`` lies outside [``least``, ``most``]; None always passes."""
    if value is not None and not least <= value <= most:
        raise ConfigError(f"{key}={value} is out of range. It must lie in [{least}, {most}].")
