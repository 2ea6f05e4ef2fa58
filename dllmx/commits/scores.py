"""Scores by which commit rules rank the eligible positions; larger is surer."""

from __future__ import annotations

import torch
from torch import Tensor

from dllmx.engine.interface import Prediction, View

SCORES = ("confidence", "margin", "entropy", "random")


def measures_of(score: str) -> frozenset[str]:
    """What a prediction must hold besides the confidence for this score."""
    return frozenset({score}) if score in ("margin", "entropy") else frozenset()


def score_of(score: str, view: View, prediction: Prediction) -> Tensor:
    """Score [N] float64 of every row: probability, top-2 margin, negative entropy, or random.

    Random scores are one uniform draw for the whole canvas at each step (LLaDA's order).
    """
    if score == "random":
        drawn = torch.rand(view.length, generator=view.generator)
        return drawn[prediction.positions].double()
    if score == "margin":
        assert prediction.margin is not None
        return prediction.margin
    if score == "entropy":
        assert prediction.entropy is not None
        return -prediction.entropy
    return prediction.confidence


def best_first(score: Tensor, positions: Tensor, length: int, count: int) -> Tensor:
    """Indices of the ``count`` largest of ``score`` [N], largest first; all if there are fewer.

    The scores are ranked on a row of the whole canvas (``length``), as the published decoders
    do: torch.topk orders equal scores by the row they stand in, and so ties fall alike.
    """
    row = on_canvas(score, positions, length)
    ranked = row.topk(min(count, score.numel())).indices
    return torch.searchsorted(positions, ranked)


def on_canvas(score: Tensor, positions: Tensor, length: int) -> Tensor:
    """A row [length] that holds ``score`` at ``positions`` (sorted) and -inf elsewhere."""
    return torch.full((length,), -torch.inf, dtype=score.dtype).index_copy(0, positions, score)
