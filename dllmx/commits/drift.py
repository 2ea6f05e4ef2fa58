"""Polestar-Commit (arXiv 2607.14107, section 4.2).

Besides what is sure enough, a token of the block is committed when its drift stands out against
its recent history: Delta = drift - mean of the last h, at least alpha (tau_s - c)^2 for a token of
confidence c. Behind the block, what the final update packet predicts surely enough is committed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dllmx.config.ranges import check_at_least, check_between, check_choice
from dllmx.engine.interface import Commit as Decision
from dllmx.engine.interface import CommitRule, Needs, Prediction, View


@dataclass(frozen=True)
class Config:
    """The paper's Table 5 and Figure 6(b), and the bounds of its released code.

    ``threshold``: tau_s; ``history``: h; ``suffix_threshold``: tau_suf, None for no commits behind
    the block; ``constant``: what ``rule=raw`` and ``rule=delta`` compare drift and Delta with.
    """

    name: str
    rule: str = "gate"
    threshold: float = 0.9
    history: int = 5
    alpha: float = 10.0
    constant: float = 1.0
    suffix_threshold: float | None = 0.9
    early_minimum: float | None = None
    delta_maximum: float | None = None

    def __post_init__(self) -> None:
        check_choice("commit.rule", self.rule, ("gate", "delta", "raw", "static"))
        for key in ("threshold", "suffix_threshold", "early_minimum"):
            check_between(f"commit.{key}", getattr(self, key), 0.0, 1.0)
        for key in ("history", "alpha", "constant", "delta_maximum"):
            check_at_least(f"commit.{key}", getattr(self, key), 0)


class Commit(CommitRule):
    """Sure tokens, tokens whose drift spikes, and sure tokens of the packet behind the block."""

    needs = Needs(read="partial_masks", reads=frozenset({"drift", "packet"}))

    def __init__(self, config: Config) -> None:
        self.config = config
        if config.rule == "static":
            self.needs = replace(self.needs, reads=self.needs.reads - {"drift"})
        if config.suffix_threshold is None:
            reads = self.needs.reads - {"packet"}
            self.needs = replace(self.needs, read="block_masks", reads=reads)
        self.past: deque[Tensor] = deque(maxlen=config.history)

    def select(self, view: View, prediction: Prediction) -> Decision:
        """At a block's entry by confidence only, afterwards by drift and from the packet too."""
        confident = self._confident(prediction)
        if view.block_step == 0:
            self.past.clear()
            return prediction.commit(confident)
        early = suffix = torch.zeros_like(confident)
        note = {}
        if self.config.rule != "static":
            drift = view.signals["drift"]
            delta = drift - torch.stack([*self.past]).mean(0) if self.past else drift
            self.past.append(drift)
            early = self._spiking(view, prediction, drift, delta) & ~confident
            note = {"drift": drift.tolist(), "delta": delta.tolist()}
        if self.config.suffix_threshold is not None:
            sure = prediction.confidence >= self.config.suffix_threshold
            suffix = sure & _from_packet(view, prediction)
        note |= {
            "early": prediction.positions[early].tolist(),
            "suffix": prediction.positions[suffix].tolist(),
        }
        return prediction.commit(confident | early | suffix, note=note)

    def _confident(self, prediction: Prediction) -> Tensor:
        """c >= tau_s, and always the surest of the block."""
        chosen = prediction.eligible & (prediction.confidence >= self.config.threshold)
        if bool(prediction.eligible.any()):
            inside = prediction.confidence.where(prediction.eligible, -torch.inf)
            chosen[inside.argmax()] = True
        return chosen

    def _spiking(self, view: View, prediction: Prediction, drift: Tensor, delta: Tensor) -> Tensor:
        """Tokens of the block whose drift, or Delta, reaches what the rule asks of it."""
        config, block = self.config, view.block
        inside = prediction.eligible & (prediction.positions >= block.lo)
        index = (prediction.positions - block.lo).clamp(0, drift.numel() - 1)
        delta, drift = delta[index].double(), drift[index].double()
        confidence = prediction.confidence
        if config.rule == "gate":
            reached = delta >= config.alpha * (config.threshold - confidence) ** 2
        else:
            reached = (drift if config.rule == "raw" else delta) >= config.constant
        if config.early_minimum is not None:
            reached &= confidence > config.early_minimum
        if config.delta_maximum is not None:
            reached &= delta < config.delta_maximum
        return inside & reached


def _from_packet(view: View, prediction: Prediction) -> Tensor:
    """Which predictions are of masks behind the block and come from rows of the packet."""
    sources = prediction.positions - int(view.shifted)
    behind = prediction.positions >= view.block.hi
    return behind & torch.isin(sources, view.signals["packet"])
