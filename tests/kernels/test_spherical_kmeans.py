from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dllmx.kernels.spherical_kmeans import spherical_kmeans_torch


def vectors(count: int, width: int = 6, seed: int = 0) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


@settings(deadline=None)
@given(count=st.integers(2, 40), clusters=st.integers(1, 8), seed=st.integers(0, 99))
def test_centroids_are_the_means_of_the_members(count: int, clusters: int, seed: int) -> None:
    clusters = min(clusters, count)
    x = vectors(count, seed=seed)
    found = spherical_kmeans_torch(x, torch.arange(clusters), iterations=4)
    assert found.counts.sum() == count
    for label in range(clusters):
        members = x[found.labels == label]
        assert len(members) == found.counts[label]
        if len(members):
            torch.testing.assert_close(found.centroids[label], members.mean(0))


def test_vectors_are_assigned_by_direction_not_by_length() -> None:
    x = torch.tensor([[1.0, 0.1], [50.0, 1.0], [0.1, 1.0], [1.0, 50.0]])
    found = spherical_kmeans_torch(x, torch.tensor([0, 2]), iterations=3)
    assert found.labels.tolist() == [0, 0, 1, 1]
    assert found.centroids[0].tolist() == pytest.approx([25.5, 0.55])


def test_each_iteration_assigns_to_the_most_similar_centroid_of_the_one_before() -> None:
    x = vectors(30)
    before = spherical_kmeans_torch(x, torch.arange(5), iterations=2)
    after = spherical_kmeans_torch(x, torch.arange(5), iterations=3)
    similarity = F.cosine_similarity(x[:, None], before.centroids[None], dim=-1)
    assert torch.equal(after.labels, similarity.argmax(-1))


def test_as_many_clusters_as_vectors_give_each_its_own() -> None:
    x = torch.ones(4, 3)
    found = spherical_kmeans_torch(x, torch.tensor([2, 0, 3, 1]), iterations=5)
    assert found.labels.tolist() == [0, 1, 2, 3]
    assert found.counts.tolist() == [1.0] * 4


def test_an_empty_cluster_keeps_its_centroid_or_takes_a_spare_row() -> None:
    x = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]])
    start = torch.tensor([0, 1])  # the same direction: the second cluster gets no member
    kept = spherical_kmeans_torch(x, start, iterations=1)
    assert kept.counts.tolist() == [3.0, 0.0]
    assert kept.centroids[1].tolist() == [2.0, 0.0]
    spared = spherical_kmeans_torch(x, start, 2, spare=lambda: torch.tensor([0, 2]))
    assert spared.labels.tolist() == [0, 0, 1]


def test_half_precision_vectors_are_clustered_in_float32() -> None:
    found = spherical_kmeans_torch(vectors(20).bfloat16(), torch.arange(3), iterations=2)
    assert found.centroids.dtype == torch.float32
