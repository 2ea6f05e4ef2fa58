"""Whether the chosen parts can work together; asked before any model loads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dllmx.config import parts
from dllmx.errors import ConfigError

if TYPE_CHECKING:
    from dllmx.config.schema import RunConfig
    from dllmx.engine.interface import Needs


def check_combination(config: RunConfig) -> None:
    """Raise ConfigError if sampler, cache and commit cannot work together, and say what would."""
    # What a part needs may depend on its settings, so the parts are made as a decode makes them.
    cache = parts.load("cache", config.cache.name).Cache(config.cache).needs
    commit = parts.load("commit", config.commit.name).Commit(config.commit).needs
    _check_signals(config, cache, commit)
    _check_steps(config, commit)
    _check_sampling(config)
    _check_guidance(config, cache)


def _check_signals(config: RunConfig, cache: Needs, commit: Needs) -> None:
    published = cache.publishes | commit.publishes
    for group, name, needs in (
        ("cache", config.cache.name, cache),
        ("commit", config.commit.name, commit),
    ):
        for signal in sorted(needs.reads - published):
            other = "commit" if group == "cache" else "cache"
            chosen = getattr(config, other).name
            options = " or ".join(f"{other}={option}" for option in _publishers(other, signal))
            raise ConfigError(
                f"{group}={name} needs the signal '{signal}'; {other}={chosen} does not publish "
                f"it. Try {options or f'another {group}: dllmx list {group}'}."
            )


def _publishers(group: str, signal: str) -> list[str]:
    """Names of the parts of ``group`` that publish ``signal``."""
    classes = {
        name: getattr(parts.load(group, name), group.capitalize(), None)
        for name in parts.names(group)
    }
    return [name for name, part in classes.items() if part and signal in part.needs.publishes]


def _check_steps(config: RunConfig, commit: Needs) -> None:
    steps = config.sampler.steps
    if steps is not None and not commit.steps:
        raise ConfigError(
            f"sampler.steps={steps} is not read by commit={config.commit.name}, which decides the "
            "number of steps itself. Leave it out, or use commit=quota."
        )


def _check_sampling(config: RunConfig) -> None:
    sampler = config.sampler
    if sampler.temperature == 0 and sampler.confidence_from == "model":
        for key in ("top_p", "top_k"):
            value = getattr(sampler, key)
            if value is not None:
                raise ConfigError(
                    f"sampler.{key}={value} changes nothing at sampler.temperature=0. "
                    "Raise the temperature, or set sampler.confidence_from=sampled."
                )


def _check_guidance(config: RunConfig, cache: Needs) -> None:
    if config.sampler.guidance > 0 and (cache.layer_hook or cache.attention is not None):
        raise ConfigError(
            f"sampler.guidance={config.sampler.guidance} cannot work with "
            f"cache={config.cache.name}, which chooses rows inside the forward. "
            "Set sampler.guidance=0, or use another cache."
        )
