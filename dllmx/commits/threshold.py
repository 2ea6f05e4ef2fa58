"""Confidence threshold of Fast-dLLM (arXiv 2505.22618, section 3.2).

Every eligible token whose probability reaches tau is committed, and always the surest one.
"""

from __future__ import annotations

from dataclasses import dataclass

from dllmx.config.ranges import check_between, check_choice
from dllmx.engine.interface import Commit as Decision
from dllmx.engine.interface import CommitRule, Needs, Prediction, View


@dataclass(frozen=True)
class Config:
    """``threshold``: tau. ``first_token=forced``: a block's entry commits its first position only,
    whatever its confidence, as Fast-dLLM's cached path for Dream does.
    """

    name: str
    threshold: float = 0.9
    first_token: str = "free"

    def __post_init__(self) -> None:
        check_between("commit.threshold", self.threshold, 0.0, 1.0)
        check_choice("commit.first_token", self.first_token, ("free", "forced"))


class Commit(CommitRule):
    """All at or above tau, at least one."""

    needs = Needs()

    def __init__(self, config: Config) -> None:
        self.config = config

    def select(self, view: View, prediction: Prediction) -> Decision:
        """Commit what is sure enough."""
        candidates = prediction.restricted(prediction.eligible)
        if self.config.first_token == "forced" and view.block_step == 0:
            return candidates.commit(candidates.positions == view.block.lo)
        chosen = candidates.confidence >= self.config.threshold
        if candidates.positions.numel():
            chosen[candidates.confidence.argmax()] = True
        return candidates.commit(chosen)
