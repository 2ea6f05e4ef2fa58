"""Archer (arXiv 2608.08086): reuse the prompt's keys and values inside a Hamming radius.

Symbols: g_t the response before update t, g_r the anchor: the response at which the prompt cache
was built; D_t the number of response positions where g_t and g_r differ (mask to token, token to
mask and token to token all count); K the refresh radius; A_t = t - r the cache's age.
Before each update: without a cache or with D_t >= K one full forward gives the logits and the new
prompt keys and values; else only the response is computed, all of it, against the cached prompt.

Shifted models predict the first response token from the last prompt row: the engine computes that
row in the cached forwards too, so its keys and values are fresh as well.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dllmx.config.ranges import check_at_least
from dllmx.engine.interface import CachePolicy, Needs, Plan, View


@dataclass(frozen=True)
class Config:
    """``radius``: K; 1 refreshes on any change, None builds the cache once."""

    name: str
    radius: int | None = 8

    def __post_init__(self) -> None:
        check_at_least("cache.radius", self.radius, 1)


class Cache(CachePolicy):
    """The response every time, the prompt when the response has moved K positions away."""

    needs = Needs(store=frozenset({"k", "v"}))

    def __init__(self, config: Config) -> None:
        self.config = config
        self.anchor: Tensor | None = None
        self.built_at = 0

    def plan(self, view: View) -> Plan:
        """Compare the response with the anchor, before the update."""
        response = view.tokens[view.prompt_length :]
        distance = 0 if self.anchor is None else int((response != self.anchor).sum())
        note = {"distance": distance, "age": view.step - self.built_at}
        if self.anchor is None or self._outside(distance):
            reason = "first" if self.anchor is None else "radius"
            self.anchor, self.built_at = response.clone(), view.step
            return Plan(reason=reason, note=note)
        return Plan(torch.arange(view.prompt_length, view.length), reason="response", note=note)

    def _outside(self, distance: int) -> bool:
        return self.config.radius is not None and distance >= self.config.radius
