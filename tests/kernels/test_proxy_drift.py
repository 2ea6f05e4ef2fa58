"""Proxies of a layer: norm, projection, rotation, attention and drift in one, kernel and twin."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dllmx.kernels.proxy_drift import (
    ProxyDrift,
    proxy_attention_torch,
    proxy_drift_torch,
    refresh_proxies_torch,
    refresh_proxies_triton,
)
from dllmx.models import layers


def inputs(
    count: int = 3,
    width: int = 40,
    heads: int = 4,
    groups: int = 2,
    size: int = 8,
    length: int = 21,
    dtype: torch.dtype = torch.float32,
    angles: torch.dtype | None = torch.float32,
    bias: bool = True,
    compared: bool = True,
) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(count * 100 + length)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    angle = normal(count, size // 2) * 3
    angle = torch.cat([angle, angle], dim=-1)
    turn = (None, None) if angles is None else (angle.cos().to(angles), angle.sin().to(angles))
    previous = normal(heads, count, length).softmax(-1) if compared else None
    return (
        normal(count, width).to(dtype),
        (1 + normal(width) / 4).to(dtype),
        1e-5,
        (2 * normal(heads * size, width) / width**0.5).to(dtype),
        normal(heads * size).to(dtype) if bias else None,
        *turn,
        normal(groups, length, size).to(dtype),
        previous,
    )


TOLERANCES = {
    torch.float32: (1e-4, 1e-5),
    torch.float16: (2e-2, 1e-3),
    torch.bfloat16: (8e-2, 2e-2),
}
"""Relative and absolute; the interpreter cuts bfloat16 off where a GPU rounds it."""


def assert_same(found: ProxyDrift, twin: ProxyDrift, dtype: torch.dtype) -> None:
    relative, absolute = TOLERANCES[dtype]
    tolerance = {"rtol": relative, "atol": absolute}
    assert found.attention.dtype == torch.float32
    torch.testing.assert_close(found.attention, twin.attention, **tolerance)
    assert (found.drift is None) == (twin.drift is None)
    if found.drift is not None:
        torch.testing.assert_close(found.drift, twin.drift, **tolerance)


@pytest.mark.parametrize("angles", [None, torch.float32])
@pytest.mark.parametrize("refresh", [refresh_proxies_torch, refresh_proxies_triton])
def test_proxies_are_what_the_layer_would_make_of_the_centroids(
    refresh: Any, angles: torch.dtype | None
) -> None:
    arguments = inputs(angles=angles)
    x, norm, eps, weight, bias, cos, sin, keys, previous = arguments
    packed = layers.rms_norm(x, norm, eps) @ weight.T + bias
    queries = packed.view(3, 4, 8).transpose(0, 1)
    if angles is not None:
        queries = layers.rotate(queries[None], layers.Rotation(cos[None], sin[None]))[0]
    attention = proxy_attention_torch(queries, keys)
    found = refresh(*arguments)
    torch.testing.assert_close(found.attention, attention, rtol=1e-4, atol=1e-6)
    expected = proxy_drift_torch(attention, previous)
    torch.testing.assert_close(found.drift, expected, rtol=1e-4, atol=1e-6)
    again = refresh(*arguments[:-1], found.attention)
    assert bool((again.drift.abs() < 1e-6).all())


@settings(max_examples=30)
@given(
    count=st.integers(1, 18),
    width=st.integers(1, 150),
    groups=st.integers(1, 2),
    shared=st.integers(1, 3),
    size=st.sampled_from([8, 20, 32]),
    length=st.integers(1, 140),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    rotation=st.sampled_from(["none", "full", "same"]),
    bias=st.booleans(),
    compared=st.booleans(),
)
def test_kernel_equals_its_twin(
    count: int,
    width: int,
    groups: int,
    shared: int,
    size: int,
    length: int,
    dtype: torch.dtype,
    rotation: str,
    bias: bool,
    compared: bool,
) -> None:
    angles = {"none": None, "full": torch.float32, "same": dtype}[rotation]
    arguments = inputs(
        count, width, groups * shared, groups, size, length, dtype, angles, bias, compared
    )
    assert_same(refresh_proxies_triton(*arguments), refresh_proxies_torch(*arguments), dtype)


def test_kernel_reads_tensors_of_any_row_stride() -> None:
    arguments = inputs()
    strided = [
        torch.stack([one, one * 0], dim=-2).flatten(-3, -2)[..., ::2, :]
        if isinstance(one, Tensor) and one.dim() > 1 and index != 8
        else one
        for index, one in enumerate(arguments)
    ]
    assert strided[3].stride() == (80, 1)
    assert_same(refresh_proxies_triton(*strided), refresh_proxies_torch(*arguments), torch.float32)
    strided[0] = strided[0].mT.contiguous().mT
    with pytest.raises(ValueError, match="need 1 in the last dimension"):
        refresh_proxies_triton(*strided)


@pytest.mark.parametrize(
    ("heads", "groups", "width", "bias", "angles"),
    [(2, 2, 4096, False, None), (7, 1, 3584, True, torch.bfloat16)],
)
def test_kernel_equals_its_twin_at_real_widths(
    heads: int, groups: int, width: int, bias: bool, angles: torch.dtype | None
) -> None:
    arguments = inputs(8, width, heads, groups, 128, 300, torch.bfloat16, angles, bias)
    assert_same(
        refresh_proxies_triton(*arguments), refresh_proxies_torch(*arguments), torch.bfloat16
    )


def test_kernel_reads_an_earlier_attention_of_any_strides() -> None:
    arguments = inputs()
    previous = arguments[-1].mT.contiguous().mT
    assert previous.stride(-1) != 1
    twin = refresh_proxies_torch(*arguments)
    assert_same(refresh_proxies_triton(*arguments[:-1], previous), twin, torch.float32)


@pytest.mark.parametrize("refresh", [refresh_proxies_torch, refresh_proxies_triton])
def test_a_head_whose_divergence_is_below_zero_counts_as_zero(refresh: Any) -> None:
    arguments = inputs()
    attention = refresh(*arguments[:-1], None).attention
    above = attention.clone()
    above[0] *= 4  # not a distribution: its divergence is -log 4
    assert bool((refresh(*arguments[:-1], above).drift.abs() < 1e-6).all())
    below = above.clone()
    below[1] /= 2  # +log 2 of one head in four
    found = refresh(*arguments[:-1], below).drift
    torch.testing.assert_close(found, torch.full((3,), math.log(2) / 4), rtol=1e-3, atol=1e-5)
