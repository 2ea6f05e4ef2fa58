"""Which generated problems are for training and which are held out, and how they are drawn."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass

from dllmx.errors import ConfigError
from dllmx.tasks.problem import Example, Problem

HELD_OUT_SHARE = 10
"""One problem in this many is held out, by the hash of its prompt."""

TEST_SIZE = 500
"""Held-out problems of a bundled task; ``task.limit`` takes the first ones."""

Draw = Callable[[random.Random], Example]


@dataclass(frozen=True)
class GeneratedConfig:
    """Settings of a task with generated problems.

    ``limit``: problems, None for all; ``seed``: of the problems; ``gen_length`` and
    ``block_length``: recommended response and block length in tokens.
    """

    name: str
    limit: int | None = None
    seed: int = 0
    gen_length: int = 32
    block_length: int = 16

    def __post_init__(self) -> None:
        """Check ranges. Raises ConfigError."""
        check_common(self.limit, self.seed, self.gen_length, self.block_length)


def is_held_out(prompt: str) -> bool:
    """True when a problem belongs to the test part; depends on nothing but its prompt."""
    digest = hashlib.sha256(prompt.encode()).digest()
    return digest[0] * 256 + digest[1] < 65536 // HELD_OUT_SHARE


def training_example(draw: Draw, rng: random.Random) -> Example:
    """The next example whose problem is not held out."""
    while True:
        example = draw(rng)
        if not is_held_out(example.prompt):
            return example


def held_out_problems(name: str, draw: Draw, seed: int, limit: int | None) -> list[Problem]:
    """The first ``limit`` (all ``TEST_SIZE`` for None) distinct held-out problems of ``seed``."""
    rng = random.Random(f"{name}/test/{seed}")
    wanted = TEST_SIZE if limit is None else min(limit, TEST_SIZE)
    found: dict[str, Problem] = {}
    while len(found) < wanted:
        example = draw(rng)
        if is_held_out(example.prompt) and example.prompt not in found:
            number = f"{name}-{seed}-{len(found):04d}"
            found[example.prompt] = Problem(number, example.prompt, example.reference)
    return list(found.values())


def check_common(limit: int | None, seed: int, gen_length: int, block_length: int) -> None:
    """Range checks of the fields that all tasks share."""
    if limit is not None and limit < 1:
        raise ConfigError(f"task.limit={limit}: give a number of problems >= 1, or null for all.")
    if seed < 0:
        raise ConfigError(f"task.seed={seed}: give an integer >= 0.")
    if gen_length < 1 or block_length < 1 or gen_length % block_length:
        raise ConfigError(
            f"task.gen_length={gen_length} task.block_length={block_length}: "
            "both must be >= 1 and the block must divide the length, e.g. 32 and 16."
        )
