"""Spherical k-means: vectors are assigned by cosine, a centroid is the mean of its members.

The centroid is not scaled to unit length, so that it can stand for a hidden state.

The kernels take two launches an iteration for all layers together: one program assigns a tile of
rows, one moves the centroids over a tile of channels. A single launch with a program a layer would
leave most of a GPU idle, with 28 or 32 layers on 108 or more multiprocessors, and read each layer's
n x D inputs (1 to 3 MB) at one multiprocessor's share of the bandwidth, twice an iteration; two
launches spread the same reads over all of them, and a launch costs a few microseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dllmx.kernels.compiled import Variant
from dllmx.kernels.language import jit, next_power_of_2, tl

ASSIGNED_ROWS = 16
UPDATED_ROWS = 32
CHANNELS = 128
SMALLEST_DOT = 16
STAGES = 3


class Clusters(NamedTuple):
    """``centroids`` [K, D] float32, ``labels`` [n] int64 in 0..K-1, ``counts`` [K] float32.

    Of a batch of layers each has a leading L.
    """

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


def batched_kmeans_torch(vectors: Tensor, start: Tensor, iterations: int) -> Clusters:
    """``spherical_kmeans_torch`` without ``spare`` of each layer of ``vectors`` [L, n, D].

    ``start`` [L, K] int64: the rows that begin in each layer.
    """
    count = start.shape[1]
    if count == vectors.shape[1]:
        return _own_clusters(vectors)
    wide = vectors.float()
    unit = F.normalize(wide, dim=-1)
    centroids = _first_centroids(vectors, start)
    for _ in range(iterations):
        labels = (unit @ F.normalize(centroids, dim=-1).mT).argmax(-1)
        members = F.one_hot(labels, count).mT.float()  # [L, K, n]
        counts = members.sum(-1)
        means = members @ wide / counts.clamp(min=1)[..., None]
        centroids = torch.where((counts == 0)[..., None], centroids, means)
    return Clusters(centroids, labels, counts)


def batched_kmeans_triton(vectors: Tensor, start: Tensor, iterations: int) -> Clusters:
    """``batched_kmeans_torch`` in two launches an iteration for all layers; no synchronisation.

    Equally similar centroids: the first of them is taken.
    """
    layers, rows, width = vectors.shape
    count = start.shape[1]
    if count == rows:
        return _own_clusters(vectors)
    if vectors.stride(-1) != 1:
        raise ValueError(f"vectors have strides {vectors.stride()}: need 1 in the last dimension")
    centroids = _first_centroids(vectors, start)
    labels = torch.empty(layers, rows, dtype=torch.int64, device=vectors.device)
    counts = torch.empty(layers, count, device=vectors.device)
    strides = vectors.stride(0), vectors.stride(1)
    padded = max(next_power_of_2(count), SMALLEST_DOT)
    tiles = -(-rows // ASSIGNED_ROWS)
    chunks = -(-width // CHANNELS)
    # One-hot rows times values that tf32 represents exactly are exact on tensor cores.
    precision = "ieee" if vectors.dtype == torch.float32 else "tf32"
    for _ in range(iterations):
        assign_kernel[(tiles, layers)](
            vectors, centroids, labels, *strides, rows, width,
            COUNT=count, BLOCK_K=padded, BLOCK_N=ASSIGNED_ROWS, BLOCK_D=CHANNELS,
            num_stages=STAGES,
        )  # fmt: skip
        update_kernel[(chunks, layers)](
            vectors, labels, centroids, counts, *strides, rows, width,
            COUNT=count, BLOCK_K=padded, BLOCK_N=UPDATED_ROWS, BLOCK_D=CHANNELS,
            PRECISION=precision, num_stages=STAGES,
        )  # fmt: skip
    return Clusters(centroids, labels, counts)


def _own_clusters(vectors: Tensor) -> Clusters:
    layers, rows, _ = vectors.shape
    labels = torch.arange(rows, device=vectors.device).expand(layers, rows).contiguous()
    return Clusters(vectors.float(), labels, torch.ones(layers, rows, device=vectors.device))


def _first_centroids(vectors: Tensor, start: Tensor) -> Tensor:
    """The rows ``start`` [L, K] of ``vectors`` [L, n, D], copied, in float32."""
    index = start.to(vectors.device)[..., None].expand(-1, -1, vectors.shape[-1])
    return vectors.gather(1, index).float()


@jit
def assign_kernel(  # type: ignore[no-untyped-def]
    vectors, centroids, labels, layer_stride, row_stride, rows, width,
    COUNT: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program a tile of rows of a layer: each row's most similar centroid, the first of equals.

    A row's own length is left out: it scales all its similarities alike.
    """
    layer = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    cluster = tl.arange(0, BLOCK_K)
    vector = vectors + layer * layer_stride + row.to(tl.int64)[:, None] * row_stride
    centroid = centroids + (layer * COUNT + cluster[None, :]) * width
    products = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    squares = tl.zeros((BLOCK_K,), tl.float32)
    for first in range(0, width, BLOCK_D):
        column = first + tl.arange(0, BLOCK_D)
        is_vector = (row < rows)[:, None] & (column < width)[None, :]
        is_centroid = (cluster < COUNT)[None, :] & (column < width)[:, None]
        x = tl.load(vector + column[None, :], mask=is_vector, other=0.0).to(tl.float32)
        z = tl.load(centroid + column[:, None], mask=is_centroid, other=0.0).to(tl.float32)
        products = tl.dot(x, z, products, input_precision="ieee")
        squares += tl.sum(z * z, axis=0)
    similarity = products / tl.maximum(tl.sqrt(squares), 1e-12)[None, :]
    similarity = tl.where((cluster < COUNT)[None, :], similarity, float("-inf"))
    nearest = tl.argmax(similarity, axis=1).to(tl.int64)
    tl.store(labels + layer * rows + row, nearest, mask=row < rows)


@jit
def update_kernel(  # type: ignore[no-untyped-def]
    vectors, labels, centroids, counts, layer_stride, row_stride, rows, width,
    COUNT: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One program a tile of a layer's channels: the mean of every cluster's members.

    A cluster without members keeps its centroid: nothing is stored over it.
    """
    layer = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * BLOCK_D + tl.arange(0, BLOCK_D)
    cluster = tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_K, BLOCK_D), tl.float32)
    members = tl.zeros((BLOCK_K,), tl.float32)
    for first in range(0, rows, BLOCK_N):
        row = first + tl.arange(0, BLOCK_N)
        label = tl.load(labels + layer * rows + row, mask=row < rows, other=-1).to(tl.int32)
        is_member = (label[None, :] == cluster[:, None]).to(tl.float32)
        vector = vectors + layer * layer_stride + row.to(tl.int64)[:, None] * row_stride
        is_value = (row < rows)[:, None] & (column < width)[None, :]
        x = tl.load(vector + column[None, :], mask=is_value, other=0.0).to(tl.float32)
        total = tl.dot(is_member, x, total, input_precision=PRECISION)
        members += tl.sum(is_member, axis=1)
    means = total / tl.maximum(members, 1.0)[:, None]
    is_filled = (members > 0)[:, None] & (column < width)[None, :]
    centroid = centroids + (layer * COUNT + cluster[:, None]) * width + column[None, :]
    tl.store(centroid, means, mask=is_filled)
    if tl.program_id(0) == 0:
        tl.store(counts + layer * COUNT + cluster, members, mask=cluster < COUNT)


_ALIGNED = ("layer_stride", "row_stride", "width")
_SIZES = dict.fromkeys(("layer_stride", "row_stride", "rows", "width"), "i32")
_FIXED = dict.fromkeys(("COUNT", "BLOCK_K", "BLOCK_N", "BLOCK_D"), "constexpr")
_BLOCKS = {"COUNT": 8, "BLOCK_K": 16, "BLOCK_D": CHANNELS}
VARIANTS: tuple[Variant, ...] = (
    Variant(
        name="spherical_kmeans, 8 clusters assigned",
        kernel=assign_kernel,
        signature={"vectors": "*bf16", "centroids": "*fp32", "labels": "*i64", **_SIZES, **_FIXED},
        constants={**_BLOCKS, "BLOCK_N": ASSIGNED_ROWS},
        registers=128,
        stages=STAGES,
        aligned=_ALIGNED,
    ),
    Variant(
        name="spherical_kmeans, 8 clusters updated",
        kernel=update_kernel,
        signature={
            "vectors": "*bf16", "labels": "*i64", "centroids": "*fp32", "counts": "*fp32",
            **_SIZES, **_FIXED, "PRECISION": "constexpr",
        },
        constants={**_BLOCKS, "BLOCK_N": UPDATED_ROWS, "PRECISION": "tf32"},
        registers=128,
        stages=STAGES,
        aligned=_ALIGNED,
    ),
)  # fmt: skip
