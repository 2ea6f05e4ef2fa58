"""Clusters of a window's hidden states at one layer, for the cache policy ``polestar``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dllmx.caches.polestar_states import HeldStates, hold
from dllmx.caches.polestar_window import Segment
from dllmx.engine.interface import LayerContext
from dllmx.kernels.choice import Kernels
from dllmx.kernels.proxy_drift import ProxyDrift
from dllmx.kernels.spherical_kmeans import Clusters, spherical_kmeans_torch


@dataclass(slots=True)
class LayerClusters:
    """What one layer knows of the window: all on the device.

    ``centroids`` Z [K, D] float32 and the number of their members ``counts`` [K]; ``members`` [n],
    the window's positions, their clusters ``labels`` M [n] and their layer inputs ``held`` H';
    ``places`` [K], the members' mean position, where proxies are rotated; ``proxies`` P [H, K, T],
    the latest proxy attention.
    """

    centroids: Tensor
    counts: Tensor
    members: Tensor
    labels: Tensor
    held: HeldStates
    places: Tensor | None
    proxies: Tensor

    def hold(self, states: Tensor, form: str) -> None:
        """Keep the members' inputs [n, D], as ``form`` says, around the present centroids."""
        self.held = hold(states, self.centroids[self.labels], form, self.held.kernels)

    def states(self) -> Tensor:
        """The members' inputs [n, D] in float32, as they are kept."""
        return self.held.states(self.centroids[self.labels])

    @property
    def nbytes(self) -> int:
        """Bytes that centroids and kept inputs take."""
        return self.centroids.nbytes + self.held.nbytes


@dataclass(frozen=True, slots=True)
class Clustering:
    """How a layer's inputs are clustered and kept; see ``conf/cache/polestar.yaml``.

    ``generator`` (CPU) draws the first members and those of emptied clusters, which only plain
    PyTorch operations do, whatever the run's kernels; without one the first members are evenly
    spaced, and an emptied cluster keeps its centroid. ``at_places``: proxies are rotated to
    the mean position of their members, else not at all.
    """

    segments: Sequence[Segment]
    iterations: int
    generator: torch.Generator | None
    at_places: bool
    form: str


def cluster_layer(context: LayerContext, how: Clustering) -> LayerClusters:
    """Cluster the layer inputs of the segments, whose positions must be among the rows."""
    device = context.x.device
    members = torch.cat([segment.positions for segment in how.segments]).to(device)
    x = context.x[torch.searchsorted(context.rows, members)]
    sides = x.split([segment.positions.numel() for segment in how.segments])
    found, labels, offset = [], [], 0
    for segment, side in zip(how.segments, sides, strict=True):
        if how.generator is None:
            clusters = _spread(side, segment.clusters, how.iterations, context.kernels)
        else:
            clusters = _clustered(side, segment.clusters, how.iterations, how.generator)
        labels.append(clusters.labels + offset)
        offset += segment.clusters
        found.append(clusters)
    centroids = torch.cat([clusters.centroids for clusters in found])
    counts = torch.cat([clusters.counts for clusters in found])
    label = torch.cat(labels)
    held = hold(x, centroids[label], how.form, context.kernels)
    places = _mean_places(members, label, counts) if how.at_places else None
    proxies = _proxies(centroids, places, None, context).attention
    return LayerClusters(centroids, counts, members, label, held, places, proxies)


def refreshed_proxies(clusters: LayerClusters, context: LayerContext) -> ProxyDrift:
    """P [H, K, T], the centroids' attention over stored keys and those fresh in ``context``.

    With it, how far it moved since ``clusters.proxies``.
    """
    return _proxies(clusters.centroids, clusters.places, clusters.proxies, context)


def patched_states(clusters: LayerClusters, context: LayerContext) -> Tensor:
    """The members' inputs [n, D] with the fresh ones of ``context`` in place.

    Each centroid moves by the change of its members' inputs, over the number of members.
    """
    kept = clusters.states()
    is_fresh = torch.isin(clusters.members, context.rows)[:, None]
    row = torch.searchsorted(context.rows, clusters.members).clamp(max=context.rows.numel() - 1)
    states = torch.where(is_fresh, context.x[row].float(), kept)
    share = (states - kept) / clusters.counts[clusters.labels][:, None]
    clusters.centroids.index_add_(0, clusters.labels, share)
    return states


def members_of(clusters: LayerClusters, chosen: Tensor) -> Tensor:
    """Sorted positions of the members of the clusters ``chosen``."""
    return clusters.members[torch.isin(clusters.labels, chosen)]


def _proxies(
    centroids: Tensor, places: Tensor | None, previous: Tensor | None, context: LayerContext
) -> ProxyDrift:
    name, fresh = ("k_unrotated", context.k_unrotated) if places is None else ("k", context.k)
    keys = context.store[name].index_copy(1, context.rows, fresh)
    return context.refresh_proxies(centroids.to(context.x.dtype), places, keys, previous)


def _spread(x: Tensor, count: int, iterations: int, kernels: Kernels) -> Clusters:
    start = torch.linspace(0, x.shape[0] - 1, count).round().long().to(x.device)
    found = kernels.batched_kmeans(x[None], start[None], iterations)
    return Clusters(*(values[0] for values in found))


def _clustered(x: Tensor, count: int, iterations: int, generator: torch.Generator) -> Clusters:
    rows = x.shape[0]
    start = torch.randperm(rows, generator=generator)[:count]

    def spare() -> Tensor:
        return torch.randint(0, rows, (count,), generator=generator)

    return spherical_kmeans_torch(x, start, iterations, spare)


def _mean_places(members: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
    total = torch.zeros_like(counts).index_add_(0, labels, members.float())
    return (total / counts.clamp(min=1)).round().long()
