"""Dual cache of Fast-dLLM (arXiv 2505.22618, section 3.1).

All rows are computed when a block is entered; afterwards only the block's, against the stored
keys and values of prompt, earlier blocks and suffix.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dllmx.engine.interface import CachePolicy, Needs, Plan, View


@dataclass(frozen=True)
class Config:
    """No settings."""

    name: str


class Cache(CachePolicy):
    """Full at block entry, then the block."""

    needs = Needs(store=frozenset({"k", "v"}))

    def __init__(self, config: Config) -> None:
        self.config = config

    def plan(self, view: View) -> Plan:
        """Entry: all rows. Else: the rows of the block, and of eligible masks before it."""
        if view.block_step == 0:
            return Plan(reason="entry")
        block = torch.arange(view.block.lo, view.block.hi)
        return Plan(torch.cat([view.eligible, block]), reason="block")
