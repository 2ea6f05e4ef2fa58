"""From Hydra's composed YAML to a typed, validated RunConfig."""

from __future__ import annotations

import dataclasses
import difflib
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dllmx.config import parts
from dllmx.config.check import check_combination
from dllmx.config.schema import (
    HardwareConfig,
    LoggerConfig,
    ModelConfig,
    PolicyConfig,
    RunConfig,
)
from dllmx.errors import ConfigError

FIXED_GROUPS = {
    "model": ModelConfig,
    "hardware": HardwareConfig,
    "policy": PolicyConfig,
    "logger": LoggerConfig,
}
PLAIN_KEYS = ("seed", "batch_size", "output", "trace", "overwrite")


def compose(overrides: list[str]) -> DictConfig:
    """Compose ``conf/config.yaml`` with Hydra overrides, e.g. ``["model=llada", "seed=1"]``.

    Raises Hydra's own errors for an unknown option or a malformed override.
    """
    GlobalHydra.instance().clear()
    with initialize_config_module("dllmx.conf", version_base="1.3"):
        return hydra_compose("config", overrides=overrides)


def validate(cfg: DictConfig) -> RunConfig:
    """Type-check every key, check every range and the combination of the parts.

    Raises ConfigError in words that name the key, the value and what is allowed.
    """
    raw = _resolved(cfg)
    known = {*FIXED_GROUPS, *parts.ROOMS, *PLAIN_KEYS}
    for key in raw:
        if key not in known:
            raise ConfigError(_unknown_key(str(key), known))
    sections: dict[str, Any] = {
        group: typed(schema, raw.get(group), group) for group, schema in FIXED_GROUPS.items()
    }
    for group in parts.ROOMS:
        sections[group] = _typed_part(group, raw.get(group))
    plain = {key: raw[key] for key in PLAIN_KEYS if key in raw}
    for field in dataclasses.fields(RunConfig):
        if field.name in plain:
            _check_plain_type(field.name, plain[field.name], str(field.type))
    config = RunConfig(**sections, **plain)
    check_combination(config)
    return config


def typed(schema: type, values: Any, prefix: str) -> Any:
    """An instance of dataclass ``schema`` from a mapping; keys are named ``prefix.key`` in errors.

    Raises ConfigError for an unknown key, a missing one, or a value of the wrong type.
    """
    if not isinstance(values, dict):
        raise ConfigError(f"{prefix} is missing. Choose one: dllmx list {prefix}")
    values = {key: value for key, value in values.items() if value != "???"}
    fields = {field.name: field for field in dataclasses.fields(schema)}
    for key in values:
        if key not in fields:
            raise ConfigError(_unknown_key(f"{prefix}.{key}", [f"{prefix}.{f}" for f in fields]))
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING
        if required and field.default_factory is dataclasses.MISSING and name not in values:
            raise ConfigError(f"{prefix}.{name} is missing. Set it with: {prefix}.{name}=...")
    try:
        node = OmegaConf.merge(OmegaConf.structured(schema), OmegaConf.create(values))
        return OmegaConf.to_object(node)
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or getattr(error, "key", None)
        where = f"{prefix}.{key}" if key else prefix
        raise ConfigError(f"{where}: {str(error).splitlines()[0]}") from None


def _resolved(cfg: DictConfig) -> dict[str, Any]:
    try:
        raw = OmegaConf.to_container(cfg, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(str(error).splitlines()[0]) from None
    assert isinstance(raw, dict)
    return {str(key): value for key, value in raw.items()}


def _typed_part(group: str, values: Any) -> Any:
    if not isinstance(values, dict) or not isinstance(values.get("name"), str):
        raise ConfigError(f"{group}.name is missing. Choose one: dllmx list {group}")
    return typed(parts.load(group, values["name"]).Config, values, group)


def _check_plain_type(key: str, value: object, annotation: str) -> None:
    if type(value).__name__ != annotation:
        raise ConfigError(f"{key}={value} is of the wrong type. It must be of type {annotation}.")


def _unknown_key(key: str, known: Any) -> str:
    """The message for ``key``; the nearest of ``known`` by its last part, if one is near."""
    by_last_part = {name.rpartition(".")[2]: name for name in known}
    near = difflib.get_close_matches(key.rpartition(".")[2], by_last_part, n=1)
    if near:
        return f"{key} is not a configuration key. Did you mean {by_last_part[near[0]]}?"
    return f"{key} is not a configuration key. Known: {', '.join(sorted(known))}."
