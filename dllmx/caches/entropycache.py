"""EntropyCache (arXiv 2603.18489): the entropy of what was just decoded says when to recompute.

Symbols: W the eligible masks (the sampler's window of w), R the k most recently committed tokens,
E the largest entropy H(p) = -sum p ln p over the tokens committed at a step, tau its threshold.
A step whose E reaches tau makes the next forward a full one; any other forward computes W and R
and reads every other row from the store. The decision costs O(V) a committed token.

No code is public. Readings of what the paper leaves open: recompute iff E >= tau (the captions;
the overview figure's label is the other way round), entropy in nats of the distribution that the
confidence comes from, masks outside the window only refreshed by full forwards, end-of-text
tokens counted like others.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dllmx.config.ranges import check_at_least, check_choice
from dllmx.engine.interface import CachePolicy, Needs, Plan, View


@dataclass(frozen=True)
class Config:
    """``tau``: E at which the next forward is full, None for never; ``recent``: k.

    ``on_remask=refresh``: a re-masked token makes the next forward full.
    """

    name: str
    tau: float | None = 1.5
    recent: int = 64
    on_remask: str = "keep"

    def __post_init__(self) -> None:
        check_at_least("cache.tau", self.tau, 0.0)
        check_at_least("cache.recent", self.recent, 0)
        check_choice("cache.on_remask", self.on_remask, ("keep", "refresh"))


class Cache(CachePolicy):
    """Full when the last commits were uncertain, else the window and the recent tokens."""

    needs = Needs(store=frozenset({"k", "v"}), measures=frozenset({"entropy"}))

    def __init__(self, config: Config) -> None:
        self.config = config
        self.full_next = True
        self.largest_entropy = float("nan")

    def plan(self, view: View) -> Plan:
        """All rows, or W and R."""
        note = {"commit_entropy": self.largest_entropy}
        if self.full_next:
            return Plan(reason="entropy" if view.step else "first", note=note)
        rows = torch.cat([view.eligible, self._recent(view)])
        return Plan(rows, reason="window", note=note)

    def after(self, view: View) -> None:
        """Decide what the next forward computes."""
        entropy = view.committed_entropy
        self.largest_entropy = float(entropy.max()) if entropy.numel() else float("-inf")
        tau = self.config.tau
        self.full_next = tau is not None and self.largest_entropy >= tau
        if self.config.on_remask == "refresh" and view.remasked_last.numel():
            self.full_next = True

    def _recent(self, view: View) -> Tensor:
        """R: newest step first, then larger position first; re-masked tokens have left it."""
        committed = (view.committed_at >= 0).nonzero()[:, 0]
        order = view.committed_at[committed] * view.length + committed
        newest = order.topk(min(self.config.recent, committed.numel())).indices
        return committed[newest]
