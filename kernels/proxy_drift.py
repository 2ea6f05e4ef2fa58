"""Proxy attention of cluster centroids and its drift (Polestar, arXiv 2607.14107, section 4.1)."""

from __future__ import annotations

from torch import Tensor

TINY = 1e-12


def proxy_attention_torch(queries: Tensor, keys: Tensor) -> Tensor:
    """Attention [H, K, T] float32 of centroid ``queries`` [H, K, h] over ``keys`` [G, T, h]."""
    heads, clusters, size = queries.shape
    grouped = queries.float().reshape(keys.shape[0], -1, size)
    scores = grouped @ keys.float().transpose(1, 2) / size**0.5
    return scores.softmax(-1).view(heads, clusters, -1)


def proxy_drift_torch(current: Tensor, previous: Tensor) -> Tensor:
    """KL(current || previous) [K] in nats, averaged over heads, of attention rows [H, K, T]."""
    ratio = (current + TINY).log() - (previous + TINY).log()
    return (current * ratio).sum(-1).clamp(min=0).mean(0)
