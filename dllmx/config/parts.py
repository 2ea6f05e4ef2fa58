"""Parts are found by name: option ``foo-bar`` of a group is the module ``foo_bar`` of its room."""

from __future__ import annotations

import importlib
import pkgutil
import re
from types import ModuleType

from dllmx.errors import ConfigError

NAME = re.compile(r"[a-z][a-z0-9_-]*")
ROOMS = {
    "sampler": "dllmx.samplers",
    "cache": "dllmx.caches",
    "commit": "dllmx.commits",
    "task": "dllmx.tasks",
}


def load(group: str, name: str) -> ModuleType:
    """Import the module of option ``name`` in ``group`` (sampler, cache, commit or task).

    Such a module exports ``Config`` and one class: ``Sampler``, ``Cache``, ``Commit`` or ``Task``.
    Raises ConfigError if there is no such module.
    """
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{group}.name={name} is no name of a method. See them with: dllmx list {group}"
        )
    module_name = f"{ROOMS[group]}.{name.replace('-', '_')}"
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name:
            raise
        raise ConfigError(
            f"{group}.name={name} has no module {module_name}. See them with: dllmx list {group}"
        ) from None


def names(group: str) -> list[str]:
    """Names of the modules in the room of ``group``, sorted; some only serve another one."""
    room = importlib.import_module(ROOMS[group])
    return sorted(found.name.replace("_", "-") for found in pkgutil.iter_modules(room.__path__))
