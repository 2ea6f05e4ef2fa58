"""Dream's own schedule: the share of masks that a linear time grid removes at each step.

Dream's ``diffusion_generate``: times t_0 = 1 > ... > t_S = epsilon on a linear grid. At step i,
with m masks left, int(m (1 - t_{i+1} / t_i)) tokens are committed, the surest first, and all at
the last step. Algorithm ``origin`` instead commits each mask with probability
1 - t_{i+1} / t_i, whatever its confidence.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dllmx.commits.scores import best_first, measures_of, on_canvas, score_of
from dllmx.config.ranges import check_at_least, check_between, check_choice
from dllmx.engine.interface import Commit as Decision
from dllmx.engine.interface import CommitRule, Needs, Prediction, View
from dllmx.errors import ConfigError

SCORE_OF_ALGORITHM = {
    "maskgit_plus": "confidence",
    "topk_margin": "margin",
    "entropy": "entropy",
}


@dataclass(frozen=True)
class Config:
    """``algorithm``: Dream's ``alg``; ``algorithm_temperature``: its ``alg_temp``, 0 for none;
    ``epsilon``: the last time. ``first_token=forced``: a block's entry commits its first position
    only and counts as step 0 of the grid, as Fast-dLLM's cached path for Dream does.
    """

    name: str
    algorithm: str = "entropy"
    algorithm_temperature: float = 0.0
    epsilon: float = 1e-3
    first_token: str = "free"

    def __post_init__(self) -> None:
        check_choice("commit.algorithm", self.algorithm, ("origin", *SCORE_OF_ALGORITHM))
        check_at_least("commit.algorithm_temperature", self.algorithm_temperature, 0.0)
        check_between("commit.epsilon", self.epsilon, 0.0, 1.0)
        check_choice("commit.first_token", self.first_token, ("free", "forced"))
        if self.algorithm == "origin" and self.algorithm_temperature > 0:
            raise ConfigError(
                "commit.algorithm_temperature is not read by commit.algorithm=origin. Leave it "
                "out, or choose another algorithm."
            )


class Commit(CommitRule):
    """Dream's schedule within the current block."""

    needs = Needs(steps=True)

    def __init__(self, config: Config) -> None:
        self.config = config
        self.score = SCORE_OF_ALGORITHM.get(config.algorithm, "confidence")
        self.needs = Needs(steps=True, measures=measures_of(self.score))

    def select(self, view: View, prediction: Prediction) -> Decision:
        """Commit this step's share of the masks that are left."""
        candidates = prediction.restricted(prediction.eligible)
        if self.config.first_token == "forced" and view.block_step == 0:
            return candidates.commit(candidates.positions == view.block.lo)
        share = self._share(view)
        if self.config.algorithm == "origin":
            drawn = torch.rand(candidates.positions.numel(), generator=view.generator)
            return candidates.commit(drawn < share, idle=True)
        count = candidates.positions.numel()
        quota = int(torch.tensor(float(count)) * share)
        score = score_of(self.score, view, candidates)
        ranked = self._ranked(score, candidates.positions, quota, view)
        return candidates.commit(ranked, idle=quota == 0)

    def _share(self, view: View) -> Tensor:
        """1 - t_{i+1} / t_i, a float32 scalar, and 1 at the last step and after it."""
        steps, step = view.block.steps, view.block_step
        if step >= steps - 1:
            return torch.tensor(1.0)
        times = torch.linspace(1, self.config.epsilon, steps + 1)
        return 1 - times[step + 1] / times[step]

    def _ranked(self, score: Tensor, positions: Tensor, quota: int, view: View) -> Tensor:
        """Indices of ``quota`` rows: the best, or drawn without replacement by their score."""
        temperature = self.config.algorithm_temperature
        if temperature == 0 or quota == 0:
            return best_first(score, positions, view.length, quota)
        row = on_canvas(score.float(), positions, view.length)
        drawn = torch.multinomial((row / temperature).softmax(0), quota, generator=view.generator)
        return torch.searchsorted(positions, drawn)
