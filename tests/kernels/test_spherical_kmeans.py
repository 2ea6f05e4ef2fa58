from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dllmx.kernels.spherical_kmeans import (
    UPDATED_ROWS,
    Clusters,
    batched_kmeans_torch,
    batched_kmeans_triton,
    spherical_kmeans_torch,
)

BATCHED = pytest.mark.parametrize("kmeans", [batched_kmeans_torch, batched_kmeans_triton])


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


def layers_of(layers: int, count: int, width: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(layers, count, width, generator=generator)


def starts(layers: int, count: int, clusters: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randperm(count, generator=generator)[:clusters] for _ in range(layers)]
    return torch.stack(drawn)


def one_by_one(x: Tensor, start: Tensor, iterations: int) -> Clusters:
    each = [spherical_kmeans_torch(*one, iterations) for one in zip(x, start, strict=True)]
    return Clusters(*(torch.stack(parts) for parts in zip(*each, strict=True)))


def assert_same(got: Clusters, expected: Clusters) -> None:
    assert torch.equal(got.labels, expected.labels)
    assert got.labels.dtype == torch.int64
    assert torch.equal(got.counts, expected.counts)
    assert got.centroids.dtype == torch.float32
    torch.testing.assert_close(got.centroids, expected.centroids, rtol=1e-5, atol=1e-6)


@settings(max_examples=25)
@given(
    layers=st.integers(1, 3),
    count=st.integers(1, UPDATED_ROWS + 8),
    width=st.integers(2, 140),
    clusters=st.integers(1, 18),
    iterations=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_layers_in_one_batch_are_clustered_as_one_by_one(
    layers: int, count: int, width: int, clusters: int, iterations: int, seed: int
) -> None:
    x = layers_of(layers, count, width, seed)
    start = starts(layers, count, min(clusters, count), seed)
    expected = one_by_one(x, start, iterations)
    assert_same(batched_kmeans_torch(x, start, iterations), expected)
    assert_same(batched_kmeans_triton(x, start, iterations), expected)


def test_the_kernels_cluster_a_real_width() -> None:
    x, start = layers_of(2, 20, 4096), starts(2, 20, 8)
    assert_same(batched_kmeans_triton(x, start, 2), batched_kmeans_torch(x, start, 2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_kernels_take_half_precision_in_any_strides_but_the_last(dtype: torch.dtype) -> None:
    stored = layers_of(2, 40, 60).to(dtype)
    window = stored[:, 5:39, :50]
    start = starts(2, 34, 4)
    assert_same(
        batched_kmeans_triton(window, start, 3), batched_kmeans_torch(window.contiguous(), start, 3)
    )
    with pytest.raises(ValueError, match="vectors have strides"):
        batched_kmeans_triton(stored[:, :, ::2], start, 1)


@BATCHED
def test_the_first_of_equally_similar_clusters_is_taken(kmeans: Callable[..., Clusters]) -> None:
    x = torch.tensor([[[1.0, 0.0], [2.0, 0.0], [4.0, 0.0], [0.0, 1.0], [1.0, 1.0]]])
    found = kmeans(x, torch.tensor([[3, 2, 0, 1]]), 1)
    assert found.labels[0].tolist() == [1, 1, 1, 0, 0]
    assert found.counts[0].tolist() == [2.0, 3.0, 0.0, 0.0]
    assert found.centroids[0, 2:].tolist() == [[1.0, 0.0], [2.0, 0.0]]  # emptied: kept


@BATCHED
def test_zero_vectors_and_zero_centroids_do_no_harm(kmeans: Callable[..., Clusters]) -> None:
    x = torch.tensor([[[-1.0, 0.0], [0.0, 0.0], [1.0, 0.0]]])
    found = kmeans(x, torch.tensor([[0, 1]]), 1)
    assert found.labels[0].tolist() == [0, 0, 1]
    assert bool(torch.isfinite(found.centroids).all())


@BATCHED
def test_as_many_clusters_as_vectors_in_every_layer(kmeans: Callable[..., Clusters]) -> None:
    x = torch.ones(2, 4, 3)
    found = kmeans(x, torch.tensor([[2, 0, 3, 1], [0, 1, 2, 3]]), 5)
    assert found.labels.tolist() == [[0, 1, 2, 3]] * 2
    assert found.counts.tolist() == [[1.0] * 4] * 2
    assert torch.equal(found.centroids, x)


@BATCHED
def test_the_vectors_themselves_are_not_changed(kmeans: Callable[..., Clusters]) -> None:
    x = layers_of(1, 9, 5)
    before = x.clone()
    kmeans(x, torch.tensor([[0, 1]]), 2)
    assert torch.equal(x, before)
