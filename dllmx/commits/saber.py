"""Saber (ACL 2026): adaptive acceptance and backtracking re-masks. Archer is paired with it.

Symbols: c_i the probability of the best token at response position i, committed or not; tau the
mean confidence at acceptance of what was accepted; the draft: masked positions with c_i > tau,
or the n surest if fewer than n pass. The draft is committed, then the mu_t = max(1, |draft| // mu)
committed positions whose c_i fell most since the previous step get their mask back, but always
fewer than were committed. Nothing is re-masked once every position is accepted.

``compat=llada`` and ``compat=dream`` are the two released rules: mu_t = max(n // 2, |draft| / 8
rounded up), for Dream without n // 2. LLaDA's tau averages each position's latest acceptance,
Dream's the first; Dream's re-masks go to the current tokens of lowest probability.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dllmx.commits.scores import best_first
from dllmx.config.ranges import check_at_least, check_choice
from dllmx.engine.interface import Commit as Decision
from dllmx.engine.interface import CommitRule, Needs, Prediction, View
from dllmx.errors import ConfigError

RELEASED_DIVISOR = 8
NEVER = -torch.inf


@dataclass(frozen=True)
class Config:
    """``n``: least tokens a step; ``mu``: draft tokens for each re-mask; ``compat``: see above."""

    name: str
    n: int = 2
    mu: int = 2
    compat: str = "none"

    def __post_init__(self) -> None:
        check_at_least("commit.n", self.n, 1)
        check_at_least("commit.mu", self.mu, 1)
        check_choice("commit.compat", self.compat, ("none", "llada", "dream"))
        if self.compat != "none" and self.mu != Config.mu:
            raise ConfigError(
                f"commit.mu={self.mu} is not read with commit.compat={self.compat}, whose released "
                f"code divides by {RELEASED_DIVISOR}. Leave it out, or use commit.compat=none."
            )


class Commit(CommitRule):
    """Draft, commit, and take back what lost most confidence."""

    needs = Needs(read="response")

    def __init__(self, config: Config) -> None:
        self.config = config
        if config.compat == "dream":
            self.needs = Needs(read="response", measures=frozenset({"current"}))
        self.accepted_confidence: Tensor | None = None
        self.previous: Tensor | None = None

    def select(self, view: View, prediction: Prediction) -> Decision:
        """Commit the draft, then re-mask unless everything is accepted."""
        if self.accepted_confidence is None or self.previous is None:
            self.accepted_confidence = torch.full((view.length,), NEVER, dtype=torch.float64)
            self.previous = torch.full((view.length,), NEVER, dtype=torch.float64)
            self.previous[view.prompt_length : view.block.hi] = 0.0
        fall = prediction.confidence - self.previous[prediction.positions]
        self.previous[prediction.positions] = prediction.confidence
        threshold = self._threshold(view)
        draft = self._draft(view, prediction, threshold)
        self._remember(prediction, draft)
        remask = self._remask(view, prediction, draft, fall)
        return prediction.commit(draft, remask=remask, note={"threshold": threshold})

    def _threshold(self, view: View) -> float:
        """tau: mean acceptance confidence; 1 before anything was accepted."""
        assert self.accepted_confidence is not None
        known = self.accepted_confidence[: view.block.hi]
        known = known[known > NEVER]
        return float(known.mean()) if known.numel() else 1.0

    def _draft(self, view: View, prediction: Prediction, threshold: float) -> Tensor:
        """Indices of the rows to commit."""
        eligible = prediction.eligible.nonzero()[:, 0]
        confidence = prediction.confidence[eligible]
        passing = confidence > threshold
        if int(passing.sum()) >= self.config.n:
            return eligible[passing]
        positions = prediction.positions[eligible]
        return eligible[best_first(confidence, positions, view.length, self.config.n)]

    def _remember(self, prediction: Prediction, draft: Tensor) -> None:
        assert self.accepted_confidence is not None
        positions = prediction.positions[draft]
        if self.config.compat == "dream":
            new = self.accepted_confidence[positions] == NEVER
            positions, draft = positions[new], draft[new]
        self.accepted_confidence[positions] = prediction.confidence[draft]

    def _remask(self, view: View, prediction: Prediction, draft: Tensor, fall: Tensor) -> Tensor:
        """Positions that get their mask back; none when no eligible mask is left."""
        masks_left = view.eligible.numel() - draft.numel()
        count = self._remask_count(draft.numel())
        if masks_left == 0 or count <= 0:
            return prediction.positions[:0]
        decoded = view.tokens[prediction.positions] != view.mask_id
        decoded[draft] = True
        candidates = decoded.nonzero()[:, 0]
        key = fall
        if self.config.compat == "dream":
            assert prediction.current is not None
            key = prediction.current.index_copy(0, draft, prediction.confidence[draft])
        positions = prediction.positions[candidates]
        worst = best_first(-key[candidates], positions, view.length, count)
        return prediction.positions[candidates[worst]]

    def _remask_count(self, committed: int) -> int:
        if self.config.compat == "none":
            wanted = max(1, committed // self.config.mu)
        elif self.config.compat == "llada":
            wanted = max(self.config.n // 2, math.ceil(committed / RELEASED_DIVISOR))
        else:
            wanted = max(1, min(math.ceil(committed / RELEASED_DIVISOR), committed - 1))
            return wanted if committed > 1 else 0
        return min(wanted, committed - 1)
