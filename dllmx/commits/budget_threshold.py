"""A threshold under a budget: Fast-dLLM's uncached path for Dream (``confidence_threshold``).

The schedule allows masks / steps tokens a step; what the threshold rejects is carried over to the
next step's budget. The surest token of the budget is always committed.
"""

from __future__ import annotations

from dataclasses import dataclass

from dllmx.commits.quota import step_quota
from dllmx.commits.scores import best_first
from dllmx.config.ranges import check_between
from dllmx.engine.interface import Commit as Decision
from dllmx.engine.interface import CommitRule, Needs, Prediction, View


@dataclass(frozen=True)
class Config:
    """``threshold``: tau."""

    name: str
    threshold: float = 0.9

    def __post_init__(self) -> None:
        check_between("commit.threshold", self.threshold, 0.0, 1.0)


class Commit(CommitRule):
    """The best of the budget that reach tau, at least one."""

    needs = Needs(steps=True)

    def __init__(self, config: Config) -> None:
        self.config = config
        self.carried = 0

    def select(self, view: View, prediction: Prediction) -> Decision:
        """Commit within the budget of this step."""
        if view.block_step == 0:
            self.carried = 0
        candidates = prediction.restricted(prediction.eligible)
        share = 0
        if view.block_step < view.block.steps:
            share = step_quota(view.masks_at_entry, view.block.steps, view.block_step)
        budget = best_first(
            candidates.confidence, candidates.positions, view.length, share + self.carried
        )
        chosen = candidates.confidence[budget] >= self.config.threshold
        chosen[:1] = True
        self.carried = int((~chosen).sum())
        return candidates.commit(budget[chosen])
