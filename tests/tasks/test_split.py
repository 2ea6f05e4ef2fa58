"""Held-out problems: disjoint from training, distinct, reproducible, as many as asked for."""

import random

import pytest

from dllmx.errors import ConfigError
from dllmx.tasks import split, tiny_code, tiny_lists, tiny_math

MODULES = {"tiny-math": tiny_math, "tiny-lists": tiny_lists, "tiny-code": tiny_code}


@pytest.mark.parametrize("name", MODULES)
def test_there_are_500_distinct_problems_and_all_are_held_out(name):
    module = MODULES[name]
    problems = module.Task(module.Config(name)).problems()
    assert len({problem.prompt for problem in problems}) == len(problems) == 500
    assert len({problem.id for problem in problems}) == 500
    assert all(split.is_held_out(problem.prompt) for problem in problems)


@pytest.mark.parametrize("name", MODULES)
def test_training_never_sees_a_held_out_problem(name):
    rng = random.Random(0)
    drawn = [split.training_example(MODULES[name].draw, rng) for _ in range(500)]
    assert not any(split.is_held_out(example.prompt) for example in drawn)


@pytest.mark.parametrize("name", MODULES)
def test_the_same_seed_gives_the_same_problems_and_another_gives_others(name):
    module = MODULES[name]
    first = module.Task(module.Config(name, limit=20, seed=3)).problems()
    again = module.Task(module.Config(name, limit=20, seed=3)).problems()
    other = module.Task(module.Config(name, limit=20, seed=4)).problems()
    assert first == again
    assert first != other


@pytest.mark.parametrize("name", MODULES)
def test_a_limit_takes_the_first_problems(name):
    module = MODULES[name]
    whole = module.Task(module.Config(name)).problems()
    assert module.Task(module.Config(name, limit=7)).problems() == whole[:7]


def test_one_problem_in_ten_is_held_out():
    share = sum(split.is_held_out(f"problem {number}") for number in range(20000)) / 20000
    assert share == pytest.approx(0.1, abs=0.01)


def test_the_split_of_a_prompt_is_fixed_for_ever():
    held = [number for number in range(40) if split.is_held_out(f"problem {number}")]
    assert held == [2, 11, 13, 36]


@pytest.mark.parametrize(
    ("keys", "word"),
    [
        ({"limit": 0}, "limit=0"),
        ({"seed": -1}, "seed=-1"),
        ({"gen_length": 0}, "gen_length=0"),
        ({"gen_length": 32, "block_length": 12}, "block_length=12"),
    ],
)
def test_bad_settings_are_refused_by_name(keys, word):
    with pytest.raises(ConfigError, match=word):
        tiny_math.Config("tiny-math", **keys)
