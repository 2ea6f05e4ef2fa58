"""Clusters of a window's hidden states at one layer, for the cache policy ``polestar``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dllmx.caches.polestar_window import Segment
from dllmx.engine.interface import LayerContext
from dllmx.kernels.proxy_drift import proxy_attention_torch
from dllmx.kernels.spherical_kmeans import Clusters, spherical_kmeans_torch


@dataclass(slots=True)
class LayerClusters:
    """What one layer knows of the window: all on the device.

    ``centroids`` Z [K, D] float32 and the number of their members ``counts`` [K]; ``labels`` M
    [T], the cluster of every position, -1 for none; ``places`` [K], the members' mean position,
    where proxies are rotated; ``proxies`` P [H, K, T], the latest proxy attention.
    """

    centroids: Tensor
    counts: Tensor
    labels: Tensor
    places: Tensor | None
    proxies: Tensor


def cluster_layer(
    context: LayerContext,
    length: int,
    segments: Sequence[Segment],
    iterations: int,
    generator: torch.Generator | None,
    at_places: bool,
) -> LayerClusters:
    """Cluster the layer inputs of ``segments``, which must be among ``context.rows``.

    ``generator`` (CPU) draws the first members and those of emptied clusters; without one they
    are evenly spaced, and an emptied cluster keeps its centroid. ``at_places``: proxies are
    rotated to the mean position of their members, else not at all.
    """
    device = context.x.device
    labels = torch.full((length,), -1, device=device)
    found, offset = [], 0
    for segment in segments:
        positions = segment.positions.to(device)
        x = context.x[torch.searchsorted(context.rows, positions)]
        clusters = _clustered(x, segment.clusters, iterations, generator)
        labels[positions] = clusters.labels + offset
        offset += segment.clusters
        found.append(clusters)
    counts = torch.cat([clusters.counts for clusters in found])
    centroids = torch.cat([clusters.centroids for clusters in found])
    places = _mean_places(labels, counts) if at_places else None
    made = LayerClusters(centroids, counts, labels, places, centroids)
    made.proxies = proxy_attention(made, context)
    return made


def proxy_attention(clusters: LayerClusters, context: LayerContext) -> Tensor:
    """P [H, K, T]: the centroids' attention over stored keys and those fresh in ``context``."""
    queries = context.queries(clusters.centroids.to(context.x.dtype), clusters.places)
    name, fresh = ("k_unrotated", context.k_unrotated)
    if clusters.places is not None:
        name, fresh = ("k", context.k)
    keys = context.store[name].index_copy(1, context.rows, fresh)
    return proxy_attention_torch(queries, keys)


def patch_centroids(clusters: LayerClusters, context: LayerContext) -> None:
    """Move each centroid by the change of its members' inputs, over the number of members."""
    labels = clusters.labels[context.rows]
    member = (labels >= 0)[:, None]
    labels = labels.clamp(min=0)
    change = (context.x - context.store["x"][context.rows]).float().where(member, 0.0)
    share = change / clusters.counts[labels].clamp(min=1)[:, None]
    clusters.centroids.index_add_(0, labels, share)


def members_of(clusters: LayerClusters, chosen: Tensor) -> Tensor:
    """Sorted positions of the members of the clusters ``chosen``."""
    return torch.isin(clusters.labels, chosen).nonzero()[:, 0]


def _clustered(
    x: Tensor, count: int, iterations: int, generator: torch.Generator | None
) -> Clusters:
    rows = x.shape[0]
    if generator is None:
        start = torch.linspace(0, rows - 1, count).round().long()
        return spherical_kmeans_torch(x, start, iterations)
    start = torch.randperm(rows, generator=generator)[:count]

    def spare() -> Tensor:
        return torch.randint(0, rows, (count,), generator=generator)

    return spherical_kmeans_torch(x, start, iterations, spare)


def _mean_places(labels: Tensor, counts: Tensor) -> Tensor:
    positions = (labels >= 0).nonzero()[:, 0]
    total = torch.zeros_like(counts).index_add_(0, labels[positions], positions.float())
    return (total / counts.clamp(min=1)).round().long()
