from __future__ import annotations

import pytest
from seeing import MASK, view_of

from dllmx.engine.interface import Block
from dllmx.errors import ConfigError
from dllmx.samplers import blocks, full

ANY = Block(0, 0, 1, 0, 1)


def drain(sampler: blocks.Sampler | full.Sampler, tokens: list[int], prompt: int) -> list[Block]:
    view, found = view_of(tokens, prompt, ANY), []
    while (block := sampler.next_block(view)) is not None:
        found.append(block)
    return found


def test_blocks_cover_the_response_left_to_right_with_equal_steps() -> None:
    config = blocks.Config(name="blocks", gen_length=12, block_length=4, steps=6)
    found = drain(blocks.Sampler(config), [1, 2, 3] + [MASK] * 12, 3)
    assert [(b.index, b.lo, b.hi, b.eligible_from, b.steps) for b in found] == [
        (0, 3, 7, 3, 2),
        (1, 7, 11, 3, 2),
        (2, 11, 15, 3, 2),
    ]


def test_windows_of_the_prompt_with_masks_come_first() -> None:
    config = blocks.Config(name="blocks", gen_length=4, block_length=4)
    tokens = [1, 2, 3, 4, 5, MASK, 7] + [MASK] * 4
    assert [(b.lo, b.hi) for b in drain(blocks.Sampler(config), tokens, 7)] == [(4, 7), (7, 11)]


def test_llada_compat_lets_masks_of_the_prompt_compete_in_every_block() -> None:
    config = blocks.Config(name="blocks", gen_length=4, block_length=2, compat="llada")
    tokens = [1, MASK, 3] + [MASK] * 4
    found = drain(blocks.Sampler(config), tokens, 3)
    assert [(b.lo, b.hi, b.eligible_from) for b in found] == [(3, 5, 0), (5, 7, 0)]


def test_full_is_one_block_in_which_the_prompt_takes_part() -> None:
    config = full.Config(name="full", gen_length=4)
    found = drain(full.Sampler(config), [MASK, 2] + [MASK] * 4, 2)
    assert found == [Block(0, 2, 6, 0, 4)]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gen_length": 30, "block_length": 8}, "does not divide .*30.*: 6, 10, 5"),
        ({"gen_length": 32, "block_length": 8, "steps": 6}, "multiple of the 4 blocks"),
        ({"gen_length": 32, "block_length": 8, "steps": 64}, "at most one step a token"),
        ({"gen_length": 0, "block_length": 8}, "sampler.gen_length=0"),
        ({"gen_length": 8, "block_length": 8, "eos": "halt"}, "none, fill, stop"),
        ({"gen_length": 8, "block_length": 8, "top_p": 2.0}, r"sampler.top_p=2.0 .*\[0.0, 1.0\]"),
    ],
)
def test_schedules_that_cannot_work_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        blocks.Config(name="blocks", **values)  # type: ignore[arg-type]
