from __future__ import annotations

from pathlib import Path

import pytest

import dllmx.conf
from dllmx.config.compose import compose, validate
from dllmx.config.schema import RunConfig
from dllmx.errors import ConfigError

CONF = Path(dllmx.conf.__file__).parent


def options(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def run_config(*overrides: str) -> RunConfig:
    return validate(compose(list(overrides)))


@pytest.mark.parametrize("policy", options("policy"))
def test_every_policy_composes_under_its_own_name(policy: str) -> None:
    assert run_config(f"policy={policy}").policy.name == policy


@pytest.mark.parametrize("group", ["model", "hardware", "sampler", "cache", "logger"])
def test_every_option_is_valid(group: str) -> None:
    for option in options(group):
        config = run_config("policy=baseline", f"{group}={option}")
        assert getattr(config, group).name in option


def test_parts_named_on_the_command_line_win_over_the_policy() -> None:
    config = run_config("policy=fast-dllm", "cache=prefix", "commit=factor")
    assert (config.cache.name, config.commit.name) == ("prefix", "factor")
    assert run_config("policy=archer", "sampler=blocks").sampler.name == "blocks"


def test_lengths_come_from_the_task_unless_given() -> None:
    config = run_config("task=tiny-math")
    assert config.sampler.gen_length == config.task.gen_length
    assert run_config("sampler.gen_length=64").sampler.gen_length == 64


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["+sampler.gen_len=4"], r"sampler\.gen_len .*Did you mean sampler\.gen_length\?"),
        (["+colour=red"], "colour is not a configuration key"),
        (["commit.threshold=high"], r"commit\.threshold: .*high.* Float"),
        (["batch_size=many"], "batch_size=many is of the wrong type. It must be of type int"),
        (["batch_size=0"], "batch_size=0 is too small"),
        (["seed=-1"], "seed=-1"),
        (["output=''"], "output= is empty"),
        (["sampler.temperature=inf"], "sampler.temperature=inf is out of range"),
        (["task=jsonl"], "task.path is missing"),
        (["cache.name=../../x"], "is no name of a method"),
        (["commit.threshold=2"], r"commit\.threshold=2"),
        (["sampler.steps=16"], "sampler.steps=16 is not read by commit=threshold"),
        (["sampler.top_p=0.9"], "changes nothing at sampler.temperature=0"),
        (["policy=baseline", "sampler.block_length=7"], "does not divide"),
        (["model.weights=guessed"], "model.weights=guessed .*pretrained, random"),
        (["~commit.name"], r"commit\.name is missing"),
    ],
)
def test_bad_input_is_refused_in_words(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run_config(*overrides)
