"""Fixed quota: each step of a block commits its share of the masks, the surest first.

LLaDA's ``generate``: with n masks at block entry and S steps, n // S tokens a step, one more in
each of the first n % S steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from dllmx.commits.scores import SCORES, best_first, measures_of, score_of
from dllmx.config.ranges import check_choice
from dllmx.engine.interface import Commit as Decision
from dllmx.engine.interface import CommitRule, Needs, Prediction, View


@dataclass(frozen=True)
class Config:
    """``score``: what ranks the positions."""

    name: str
    score: str = "confidence"

    def __post_init__(self) -> None:
        check_choice("commit.score", self.score, SCORES)


class Commit(CommitRule):
    """The best ``quota`` eligible positions."""

    needs = Needs(steps=True)

    def __init__(self, config: Config) -> None:
        self.config = config
        self.needs = Needs(steps=True, measures=measures_of(config.score))

    def select(self, view: View, prediction: Prediction) -> Decision:
        """Commit this step's share."""
        score = score_of(self.config.score, view, prediction)
        candidates = prediction.restricted(prediction.eligible)
        quota = step_quota(view.masks_at_entry, view.block.steps, view.block_step)
        ranked = best_first(score[prediction.eligible], candidates.positions, view.length, quota)
        return candidates.commit(ranked, idle=quota == 0)


def step_quota(masks: int, steps: int, step: int) -> int:
    """Tokens that step ``step`` of ``steps`` commits out of ``masks``: the rest goes first."""
    if step >= steps:
        return masks
    return masks // steps + (1 if step < masks % steps else 0)
