"""Every sampler x cache x commit rule decodes, or is refused in words that name the parts."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from building import random_model

import dllmx.conf
from dllmx.config.check import check_combination
from dllmx.config.compose import compose, validate
from dllmx.config.schema import RunConfig
from dllmx.decode.decoder import Decoder, Request
from dllmx.errors import ConfigError

CONF = Path(dllmx.conf.__file__).parent
LENGTHS = ["task.gen_length=16", "task.block_length=8"]


def methods(group: str) -> list[str]:
    """Options with a module of their own; presets of the same module are left out."""
    options = sorted(path.stem for path in (CONF / group).glob("*.yaml"))
    return [name for name in options if f"\nname: {name}\n" in _text(group, name)]


def _text(group: str, name: str) -> str:
    return (CONF / group / f"{name}.yaml").read_text(encoding="utf-8")


@cache
def composed(sampler: str) -> RunConfig:
    parts = ["policy=baseline", f"sampler={sampler}", "logger=none"]
    return validate(compose([*parts, *LENGTHS]))


@cache
def part(group: str, name: str) -> object:
    """The default settings of a part, taken from a composition that accepts it."""
    companions = {"cache": "commit=threshold", "commit": "cache=none"}
    chosen = [f"{group}={name}", companions[group]]
    if name == "drift":
        chosen[1] = "cache=polestar"
    config = validate(compose(["policy=baseline", *chosen, *LENGTHS, "logger=none"]))
    return getattr(config, group)


def refusal_of(config: RunConfig) -> str | None:
    """Why the parts cannot work together, or None where they can."""
    try:
        check_combination(config)
    except ConfigError as error:
        return str(error)
    return None


@pytest.mark.parametrize("commit", methods("commit"))
@pytest.mark.parametrize("cache_name", methods("cache"))
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_every_combination_decodes_or_is_refused(family: str, cache_name: str, commit: str) -> None:
    model = random_model(family)
    for sampler in methods("sampler"):
        config = replace(
            composed(sampler), cache=part("cache", cache_name), commit=part("commit", commit)
        )
        refusal = refusal_of(config)
        if refusal is not None:
            assert f"={cache_name}" in refusal
            assert f"={commit}" in refusal
            continue
        requests = [Request(str(i), [3, 1, 4, 1, 5][: 3 + i], seed=i) for i in range(2)]
        for decoded in Decoder(model, config).decode(requests):
            assert model.shape.mask_id not in decoded.output_ids
            assert decoded.counters.nfe == decoded.counters.full + decoded.counters.partial
            assert decoded.counters.nfe == len(decoded.steps)


def test_the_walk_sees_every_method() -> None:
    assert {"none", "prefix", "dual", "entropycache", "archer"} <= set(methods("cache"))
    assert {"quota", "threshold", "factor", "dream", "saber"} <= set(methods("commit"))
    assert {"blocks", "full", "sliding"} <= set(methods("sampler"))
