"""Spherical k-means: vectors are assigned by cosine, a centroid is the mean of its members.

The centroid is not scaled to unit length, so that it can stand for a hidden state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Clusters(NamedTuple):
    """``centroids`` [K, D] float32, ``labels`` [n] int64 in 0..K-1, ``counts`` [K] float32."""

    centroids: Tensor
    labels: Tensor
    counts: Tensor


def spherical_kmeans_torch(
    vectors: Tensor, start: Tensor, iterations: int, spare: Callable[[], Tensor] | None = None
) -> Clusters:
    """Cluster ``vectors`` [n, D] into K = len(``start``) groups; rows ``start`` [K] begin.

    The labels are those of the last of ``iterations`` (1 or more) assignments, the centroids the
    means of exactly those members. A cluster without members keeps its centroid, or takes the row
    that ``spare()`` [K] names for it: ``spare`` is called at every iteration that leaves a cluster
    empty, which costs a host synchronisation each. With K = n every vector is its own cluster.
    """
    wide = vectors.float()
    count = start.numel()
    if count == wide.shape[0]:
        ones = torch.ones(count, device=wide.device)
        return Clusters(wide, torch.arange(count, device=wide.device), ones)
    unit = F.normalize(wide, dim=-1)
    centroids = wide[start.to(wide.device)]
    for _ in range(iterations):
        labels = (unit @ F.normalize(centroids, dim=-1).T).argmax(-1)
        members = F.one_hot(labels, count).T.float()  # [K, n]
        counts = members.sum(-1)
        empty = (counts == 0)[:, None]
        if spare is not None and bool(empty.any()):
            centroids = wide[spare().to(wide.device)]
        means = members @ wide / counts.clamp(min=1)[:, None]
        centroids = torch.where(empty, centroids, means)
    return Clusters(centroids, labels, counts)
