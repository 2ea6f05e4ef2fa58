"""Token drift: how far a token's attention moved since an earlier step.

Polestar (arXiv 2607.14107), equation 4.
"""

from __future__ import annotations

from torch import Tensor

TINY = 1e-12


def attention_drift_torch(current: Tensor, previous: Tensor) -> Tensor:
    """KL(current || previous) [R] in nats, averaged over heads, of attention rows [H, R, T]."""
    p, q = current.clamp(min=TINY), previous.clamp(min=TINY)
    return (p * (p.log() - q.log())).sum(-1).clamp(min=0).mean(0)
