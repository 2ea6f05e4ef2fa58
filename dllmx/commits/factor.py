"""Factor rule of Fast-dLLM (arXiv 2505.22618, section 3.2; released code of July 2025).

Walk down the ranked confidences while (n + 1)(1 - c_n) < f for the n-th: the more tokens are
committed together, the surer each has to be.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dllmx.commits.scores import best_first
from dllmx.config.ranges import check_at_least, check_choice
from dllmx.engine.interface import Commit as Decision
from dllmx.engine.interface import CommitRule, Needs, Prediction, View


@dataclass(frozen=True)
class Config:
    """``factor``: f. ``compat=fast-dllm``: when the walk fails only at the last rank, that token
    is committed too, as the released code does.
    """

    name: str
    factor: float = 1.0
    compat: str = "none"

    def __post_init__(self) -> None:
        check_at_least("commit.factor", self.factor, 0.0)
        check_choice("commit.compat", self.compat, ("none", "fast-dllm"))


class Commit(CommitRule):
    """The longest run of ranks that all meet their own limit, at least one."""

    needs = Needs()

    def __init__(self, config: Config) -> None:
        self.config = config

    def select(self, view: View, prediction: Prediction) -> Decision:
        """Commit the ranks before the first that falls below 1 - f / (n + 1)."""
        candidates = prediction.restricted(prediction.eligible)
        count = candidates.positions.numel()
        ranked = best_first(candidates.confidence, candidates.positions, view.length, count)
        rank = torch.arange(1, count + 1)
        meets = candidates.confidence[ranked] >= 1 - self.config.factor / (rank + 1)
        meets[:1] = True
        passed = int(meets.long().cumprod(0).sum())
        if self.config.compat == "fast-dllm" and passed == count - 1:
            passed = count
        return candidates.commit(ranked[:passed])
