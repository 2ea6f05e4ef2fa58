"""Semi-autoregressive blocks: the response is decoded block by block, left to right.

LLaDA's ``generate`` (block_length B dividing gen_length G). Masks inside the prompt (infilling)
are decoded first, in windows of B positions counted from the start of the canvas.
"""

from __future__ import annotations

from dataclasses import dataclass

from dllmx.config.ranges import check_at_least, check_choice
from dllmx.config.schema import SamplingConfig
from dllmx.engine import interface
from dllmx.engine.interface import Block, View
from dllmx.errors import ConfigError


@dataclass(frozen=True)
class Config(SamplingConfig):
    """``compat=llada``: masks in the prompt compete in every block, as published."""

    block_length: int = 32
    compat: str = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("sampler.block_length", self.block_length, 1)
        check_choice("sampler.compat", self.compat, ("none", "llada"))
        length, block = self.gen_length, self.block_length
        if length % block:
            near = [d for d in range(1, length + 1) if length % d == 0]
            options = ", ".join(str(d) for d in sorted(near, key=lambda d: abs(d - block))[:4])
            raise ConfigError(
                f"sampler.block_length={block} does not divide sampler.gen_length={length}. "
                f"Near values that do: {options}."
            )
        blocks = length // block
        if self.steps is not None and self.steps % blocks:
            raise ConfigError(
                f"sampler.steps={self.steps} is not a multiple of the {blocks} blocks "
                f"(gen_length {length} / block_length {block}), so blocks would get unequal "
                f"shares. Try sampler.steps={max(self.steps // blocks, 1) * blocks}."
            )


class Sampler(interface.Sampler):
    """Windows of the prompt that hold masks, then the blocks of the response."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.upcoming: list[tuple[int, int]] | None = None
        self.entered = 0

    def next_block(self, view: View) -> Block | None:
        """The next window in order."""
        if self.upcoming is None:
            self.upcoming = self._windows(view)
        if not self.upcoming:
            return None
        lo, hi = self.upcoming.pop(0)
        blocks = self.config.gen_length // self.config.block_length
        steps = (self.config.steps or self.config.gen_length) // blocks
        # Behind the prompt, masks before the block can only be re-masked tokens: they go on.
        first = 0 if self.config.compat == "llada" else min(lo, view.prompt_length)
        block = Block(self.entered, lo, hi, first, steps)
        self.entered += 1
        return block

    def _windows(self, view: View) -> list[tuple[int, int]]:
        size, start, end = self.config.block_length, view.prompt_length, view.length
        response = [(lo, lo + size) for lo in range(start, end, size)]
        if self.config.compat == "llada":
            return response
        prompt = [(lo, min(lo + size, start)) for lo in range(0, start, size)]
        return [(lo, hi) for lo, hi in prompt if bool(view.is_mask[lo:hi].any())] + response
