"""Prefix cache of Fast-dLLM (arXiv 2505.22618, section 3.1).

All rows are computed when a block is entered; afterwards the block and everything behind it,
against the stored keys and values of what stands before the block.
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
    """Full at block entry, then from the block to the end of the canvas."""

    needs = Needs(store=frozenset({"k", "v"}))

    def __init__(self, config: Config) -> None:
        self.config = config

    def plan(self, view: View) -> Plan:
        """Entry: all rows. Else: the block, its suffix, and eligible masks before it."""
        if view.block_step == 0:
            return Plan(reason="entry")
        suffix = torch.arange(view.block.lo, view.length)
        return Plan(torch.cat([view.eligible, suffix]), reason="suffix")
