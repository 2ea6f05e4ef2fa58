"""Token, probability, entropy and margin of logit rows in one pass; no softmax is kept.

The probability is w / (w + s), w the weight of the best token and s the sum of all others: s is
summed without the best token, so that rows whose confidences round to 1.0 in float32 still have
an order.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Confidence(NamedTuple):
    """``token`` [N] int64; ``probability``, ``entropy``, ``margin``, ``current`` [N] float64.

    The last three are None where they were not asked for; ``current`` is the probability of a
    given token of each row.
    """

    token: Tensor
    probability: Tensor
    entropy: Tensor | None = None
    margin: Tensor | None = None
    current: Tensor | None = None


def confidence_torch(
    logits: Tensor, forbidden: int, with_entropy: bool = False, with_margin: bool = False
) -> Confidence:
    """Best token of each row of ``logits`` [N, V] float32 (overwritten), never ``forbidden``.

    The forbidden token keeps its share of the probability mass. -inf logits have none. Entropy is
    in nats; margin is the best minus the second-best probability (of tokens not forbidden). NaN
    in a row gives NaN.
    """
    mass = logits[:, forbidden].clone()
    logits[:, forbidden] = -torch.inf
    best, token = logits.max(dim=-1)
    second = _second_best(logits, token) if with_margin else None
    logits[:, forbidden] = mass
    highest = torch.maximum(best, mass)  # the forbidden token's logit may be above the best
    relative = logits.sub_(highest[:, None])  # [N, V]
    weight = relative.exp()
    weight.scatter_(1, token[:, None], 0.0)
    rest = weight.sum(-1, dtype=torch.float64)
    of_best = (best - highest).double()
    total = of_best.exp() + rest
    entropy = None
    if with_entropy:
        moment = (weight * relative.clamp_(min=-1e4)).sum(-1, dtype=torch.float64)
        moment += of_best.exp() * of_best.clamp(min=-1e4)
        entropy = torch.log1p(rest + torch.expm1(of_best)) - moment / total
    probability = of_best.exp() / total
    margin = None
    if second is not None:
        margin = probability * (1 - (second - best).double().exp())
    return Confidence(token, probability, entropy, margin)


def _second_best(logits: Tensor, token: Tensor) -> Tensor:
    kept = logits.gather(1, token[:, None])
    logits.scatter_(1, token[:, None], -torch.inf)
    second = logits.max(dim=-1).values
    logits.scatter_(1, token[:, None], kept)
    return second


def probability_of(logits: Tensor, token: Tensor) -> Tensor:
    """Probability [N] float64 of ``token`` [N] under ``logits`` [N, V] float32 (overwritten).

    A token whose logit is -inf has probability 0.
    """
    chosen = logits.gather(1, token[:, None])  # [N, 1]
    impossible = chosen[:, 0] == -torch.inf
    weight = logits.sub_(chosen.masked_fill(impossible[:, None], 0.0)).exp_()
    weight.scatter_(1, token[:, None], 0.0)
    probability = 1 / (1 + weight.sum(-1, dtype=torch.float64))
    return probability.masked_fill(impossible, 0.0)
