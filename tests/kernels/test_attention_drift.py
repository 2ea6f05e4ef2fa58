"""Token drift from scores: the divergence of whole distributions; kernel against twin."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dllmx.kernels.attention_drift import (
    attention_drift_torch,
    scored_drift_torch,
    scored_drift_triton,
)
from dllmx.kernels.proxy_drift import proxy_attention_torch

Scored = tuple[Tensor, Tensor, Tensor]


def scored(
    heads: int,
    groups: int,
    rows: int,
    count: int,
    size: int,
    seed: int,
    dtype: torch.dtype = torch.float32,
    scale: float = 2.0,
) -> Scored:
    generator = torch.Generator().manual_seed(seed)
    q = (torch.randn(heads, rows, size, generator=generator) * scale).to(dtype)
    keys = torch.randn(groups, count, size, generator=generator).to(dtype)
    return q, keys, log_sum_exp(q, keys)


def log_sum_exp(q: Tensor, keys: Tensor) -> Tensor:
    wide = keys.float().repeat_interleave(q.shape[0] // keys.shape[0], 0)
    return (q.float() @ wide.mT / q.shape[-1] ** 0.5).logsumexp(-1)


def expected(now: Scored, before: Scored) -> Tensor:
    return attention_drift_torch(*(proxy_attention_torch(q, keys) for q, keys, _ in (now, before)))


@pytest.mark.parametrize("drift", [scored_drift_torch, scored_drift_triton])
@pytest.mark.parametrize("scale", [2.0, 40.0])
def test_drift_of_scores_is_the_divergence_of_the_distributions(
    drift: object, scale: float
) -> None:
    assert callable(drift)
    now, before = (scored(6, 2, 5, 23, 16, seed, scale=scale) for seed in (1, 2))
    found = drift(*now, *before)
    assert found.shape == (5,)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected(now, before), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found, drift(*before, *now), rtol=1e-2)


@pytest.mark.parametrize("drift", [scored_drift_torch, scored_drift_triton])
def test_keys_that_get_no_attention_at_all_count_as_little(drift: object) -> None:
    assert callable(drift)
    keys = 60 * torch.eye(8)[None, :5]
    q, old = torch.eye(8)[None, :1] * 8, torch.eye(8)[None, 1:2] * 8
    found = drift(q, keys, log_sum_exp(q, keys), old, keys, log_sum_exp(old, keys))
    assert 25 < found.item() < 28, "not the 170 nats that the scores differ by"


@pytest.mark.parametrize("drift", [scored_drift_torch, scored_drift_triton])
def test_a_row_that_did_not_change_has_no_drift(drift: object) -> None:
    assert callable(drift)
    q, keys, known = scored(4, 2, 6, 70, 8, 0)
    moved = q.clone()
    moved[:, 3] += 1
    found = drift(moved, keys, log_sum_exp(moved, keys), q, keys, known)
    assert bool((found[[0, 1, 2, 4, 5]].abs() < 1e-6).all())
    assert found[3] > 1e-2


@settings(max_examples=30)
@given(
    groups=st.integers(1, 3),
    shared=st.integers(1, 3),
    rows=st.integers(1, 40),
    count=st.integers(1, 300),
    size=st.sampled_from([8, 16, 20, 64]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
def test_kernel_equals_its_twin(
    groups: int, shared: int, rows: int, count: int, size: int, dtype: torch.dtype
) -> None:
    now, before = (scored(groups * shared, groups, rows, count, size, s, dtype) for s in (3, 4))
    found, twin = scored_drift_triton(*now, *before), scored_drift_torch(*now, *before)
    torch.testing.assert_close(found, twin, rtol=1e-4, atol=1e-5)


def test_kernel_reads_tensors_of_any_row_stride() -> None:
    now, before = (scored(4, 2, 7, 33, 8, seed) for seed in (5, 6))

    def spread(tensor: Tensor) -> Tensor:
        return torch.stack([tensor, tensor * 0], dim=-2).flatten(-3, -2)[:, ::2]

    strided = [(spread(q), spread(keys), known) for q, keys, known in (now, before)]
    assert strided[0][0].stride(1) == 16
    found = scored_drift_triton(*strided[0], *strided[1])
    torch.testing.assert_close(found, scored_drift_torch(*now, *before), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="need 1 in the last dimension"):
        scored_drift_triton(now[0].mT.contiguous().mT, *now[1:], *before)


@pytest.mark.parametrize(("heads", "groups"), [(2, 2), (7, 1)])
def test_kernel_equals_its_twin_at_the_size_of_real_heads(heads: int, groups: int) -> None:
    now, before = (scored(heads, groups, 3, 1280, 128, seed, torch.bfloat16) for seed in (7, 8))
    found, twin = scored_drift_triton(*now, *before), scored_drift_torch(*now, *before)
    torch.testing.assert_close(found, twin, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("drift", [scored_drift_torch, scored_drift_triton])
def test_a_head_whose_divergence_is_below_zero_counts_as_zero(drift: object) -> None:
    assert callable(drift)
    q, keys, known = scored(4, 2, 6, 70, 8, 0)
    old = known.clone()
    old[0] -= 1.5  # the earlier weights sum to more than 1: a divergence of -1.5
    old[1] += 0.5  # +0.5 of one head in four
    found = drift(q, keys, known, q, keys, old)
    torch.testing.assert_close(found, torch.full((6,), 0.5 / 4), rtol=1e-3, atol=1e-5)
