"""Full-length decoding: one block holds every mask of the canvas, the prompt's too.

Dream's ``diffusion_generate``; LLaDA's "pure diffusion".
"""

from __future__ import annotations

from dataclasses import dataclass

from dllmx.config.schema import SamplingConfig
from dllmx.engine import interface
from dllmx.engine.interface import Block, View


@dataclass(frozen=True)
class Config(SamplingConfig):
    """Only what every sampler has."""


class Sampler(interface.Sampler):
    """A single block over the response, with the prompt's masks eligible."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.entered = False

    def next_block(self, view: View) -> Block | None:
        """The one block, then None."""
        if self.entered:
            return None
        self.entered = True
        steps = self.config.steps or self.config.gen_length
        return Block(0, view.prompt_length, view.length, 0, steps)
