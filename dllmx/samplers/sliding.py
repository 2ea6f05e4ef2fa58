"""Sliding window: only the first w masks may be committed, wherever they are.

The window moves with every commit, so there is no block boundary (Elastic-Cache and
EntropyCache decode so; arXiv 2603.18489 calls its width w).
"""

from __future__ import annotations

from dataclasses import dataclass

from dllmx.config.ranges import check_at_least
from dllmx.config.schema import SamplingConfig
from dllmx.engine import interface
from dllmx.engine.interface import Block, View


@dataclass(frozen=True)
class Config(SamplingConfig):
    """``window``: w, masks that may be committed at one time."""

    window: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("sampler.window", self.window, 1)


class Sampler(interface.Sampler):
    """One block over the canvas with a window of w masks."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.entered = False

    def next_block(self, view: View) -> Block | None:
        """The one block, then None."""
        if self.entered:
            return None
        self.entered = True
        steps = self.config.steps or self.config.gen_length
        return Block(0, view.prompt_length, view.length, 0, steps, window=self.config.window)
