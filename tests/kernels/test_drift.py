"""Drift of proxies and of tokens: KL of attention rows, averaged over heads."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dllmx.kernels.attention_drift import attention_drift_torch
from dllmx.kernels.proxy_drift import proxy_attention_torch, proxy_drift_torch

DRIFTS = [attention_drift_torch, proxy_drift_torch]
Drift = Callable[[Tensor, Tensor], Tensor]


def attention(heads: int = 3, rows: int = 5, width: int = 11, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(heads, rows, width, generator=generator)).softmax(-1)


@pytest.mark.parametrize("drift", DRIFTS)
def test_drift_is_the_divergence_from_the_previous_rows(drift: Drift) -> None:
    now, before = attention(seed=1), attention(seed=2)
    p, q = now.double(), before.double()
    expected = (p * (p / q).log()).sum(-1).mean(0)
    torch.testing.assert_close(drift(now, before), expected.float(), rtol=1e-4, atol=1e-6)
    assert not torch.allclose(drift(now, before), drift(before, now), rtol=1e-2)


@pytest.mark.parametrize("drift", DRIFTS)
def test_a_row_that_did_not_change_has_no_drift(drift: Drift) -> None:
    now, before = attention(seed=1), attention(seed=2)
    now[:, 3] = before[:, 3]
    found = drift(now, before)
    assert found[3] == 0
    assert bool((found[[0, 1, 2, 4]] > 0.1).all())


@pytest.mark.parametrize("drift", DRIFTS)
def test_keys_that_get_no_attention_at_all_stay_finite(drift: Drift) -> None:
    now, before = torch.zeros(1, 1, 4), torch.zeros(1, 1, 4)
    now[..., 0] = before[..., 1] = 1.0
    assert 20 < drift(now, before).item() < 40


def test_proxies_attend_to_every_key_with_heads_that_share_keys() -> None:
    generator = torch.Generator().manual_seed(3)
    queries = torch.randn(4, 3, 8, generator=generator)
    keys = torch.randn(2, 9, 8, generator=generator)
    found = proxy_attention_torch(queries, keys)
    assert found.shape == (4, 3, 9)
    for head in range(4):
        expected = (queries[head] @ keys[head // 2].T / 8**0.5).softmax(-1)
        torch.testing.assert_close(found[head], expected)
