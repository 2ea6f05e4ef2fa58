"""Configuration from folders that are not dllmx's own: it may choose values, never run code.

Hydra instantiates what its own settings name (callbacks, launchers, sweepers), so a file that
reaches them can run any function. Files from ``--config-dir`` or ``hydra.searchpath`` are
therefore read before Hydra sees them, and refused when they touch these settings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dllmx.errors import ConfigError

CONFIG_DIR_FLAGS = ("--config-dir", "-cd")
FOLDER_IN_SEARCH_PATH = re.compile(r"file://([^,\]'\"]+)")
PACKAGE = re.compile(r"^#.*@package\s+(\S+)", re.MULTILINE)
OWN_PACKAGES = ("_global_", "_group_")


def check_foreign_config(argv: Sequence[str]) -> None:
    """Raise ConfigError if a configuration file of a foreign folder reaches Hydra's settings."""
    for folder in _folders(argv):
        for path in sorted(folder.rglob("*.yaml")):
            reason = _danger(path, path.relative_to(folder))
            if reason:
                raise ConfigError(
                    f"{path} is refused: {reason}. Files of other folders may set values of "
                    "dllmx's own groups only; settings of Hydra go on the command line."
                )


def _folders(argv: Sequence[str]) -> Iterator[Path]:
    for before, argument in zip(["", *argv], argv, strict=False):
        flag, sign, value = argument.partition("=")
        if sign and flag in CONFIG_DIR_FLAGS:
            yield Path(value)
        elif before in CONFIG_DIR_FLAGS:
            yield Path(argument)
        elif flag.lstrip("+") == "hydra.searchpath":
            yield from map(Path, FOLDER_IN_SEARCH_PATH.findall(value))


def _danger(path: Path, place: Path) -> str | None:
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
        content = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        return f"it cannot be read as YAML ({str(error).splitlines()[0]})"
    if "hydra" in place.parts[:-1] or place.stem == "hydra":
        return "it lies in a group of Hydra's own"
    packages = [name for name in PACKAGE.findall(text) if name not in OWN_PACKAGES]
    if any(name.partition(".")[0] == "hydra" for name in packages):
        return "its package is hydra"
    if isinstance(content, dict) and any(str(key).startswith("hydra") for key in content):
        return "it sets hydra"
    return "it names a _target_" if _names_target(content) else _hydra_default(content)


def _names_target(value: Any) -> bool:
    if isinstance(value, dict):
        return "_target_" in value or any(map(_names_target, value.values()))
    return isinstance(value, list) and any(map(_names_target, value))


def _hydra_default(content: Any) -> str | None:
    """Entries of the defaults list that place something in, or choose, a group of Hydra's own."""
    defaults = content.get("defaults") if isinstance(content, dict) else None
    return "its defaults name hydra" if "hydra" in str(defaults or "") else None
