from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dllmx.kernels.patch_rows import MOST_ROWS, patch_rows_torch, patch_rows_triton, tiles
from dllmx.models.layers import LayerWeights, Rotation, project_qkv, rms_norm, rotate

EPS = 1e-5


class Patch(NamedTuple):
    """Arguments of the two functions, in their order."""

    x: Tensor
    norm_weight: Tensor
    eps: float
    kv_weight: Tensor
    kv_bias: Tensor | None
    cos: Tensor
    sin: Tensor
    rows: Tensor
    keys: Tensor
    values: Tensor

    def copied(self) -> Patch:
        """The same with a store of its own."""
        return self._replace(keys=self.keys.clone(), values=self.values.clone())


def patch(
    count: int,
    width: int,
    heads: int,
    size: int,
    bias: bool = False,
    dtype: torch.dtype = torch.float32,
    angles: torch.dtype = torch.float32,
    seed: int = 0,
) -> Patch:
    """Random inputs and an unwritten store (NaN) of 5 rows more than are patched.

    Cosine and sine are any numbers, other ones in each half of a head.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    outputs, length = 2 * heads * size, count + 5
    return Patch(
        x=(3 * normal(count, width)).to(dtype),
        norm_weight=normal(width).to(dtype),
        eps=EPS,
        kv_weight=(normal(outputs, width) / width**0.5).to(dtype),
        kv_bias=normal(outputs).to(dtype) if bias else None,
        cos=normal(count, size).to(angles),
        sin=normal(count, size).to(angles),
        rows=torch.randperm(length, generator=generator)[:count],
        keys=torch.full((heads, length, size), torch.nan, dtype=dtype),
        values=torch.full((heads, length, size), torch.nan, dtype=dtype),
    )


def assert_patched_alike(case: Patch, tolerance: float) -> None:
    got, expected = case.copied(), case.copied()
    assert patch_rows_triton(*got) is None
    assert patch_rows_torch(*expected) is None
    for ours, theirs in ((got.keys, expected.keys), (got.values, expected.values)):
        largest = float(theirs.float().nan_to_num().abs().max())
        torch.testing.assert_close(
            ours.float(), theirs.float(), rtol=0, atol=tolerance * largest, equal_nan=True
        )


@settings(max_examples=30)
@given(
    count=st.integers(1, 40),
    width=st.integers(1, 150),
    heads=st.integers(1, 3),
    half=st.integers(1, 20) | st.just(40),
    bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_the_kernel_is_its_twin(
    count: int, width: int, heads: int, half: int, bias: bool, seed: int
) -> None:
    assert_patched_alike(patch(count, width, heads, 2 * half, bias, seed=seed), 1e-5)


def test_half_precision_takes_more_rows_at_once() -> None:
    case = patch(MOST_ROWS + 3, 40, 2, 20, bias=True, dtype=torch.float16)
    assert tiles(MOST_ROWS + 3, 2, 20, 2).rows == MOST_ROWS
    assert_patched_alike(case, 2e-3)


def test_more_than_eight_heads_take_larger_tiles() -> None:
    assert_patched_alike(patch(3, 32, 9, 80, bias=True), 1e-5)


@pytest.mark.parametrize(
    ("width", "bias", "angles"),
    [(4096, False, torch.float32), (3584, True, torch.bfloat16)],
    ids=["llada", "dream"],
)
def test_a_head_of_real_size_in_both_precisions(
    width: int, bias: bool, angles: torch.dtype
) -> None:
    """The interpreter cuts off where a GPU rounds to bfloat16, at each of the four roundings."""
    assert_patched_alike(patch(3, width, 1, 128, bias), 1e-5)
    assert_patched_alike(patch(3, width, 1, 128, bias, torch.bfloat16, angles), 2e-2)


@pytest.mark.parametrize("angles", [torch.float32, torch.bfloat16])
def test_the_rotation_is_in_the_precision_of_its_angles(angles: torch.dtype) -> None:
    """Angles of float32 keep apart what bfloat16 would make one: 1 + 2**-9 and 1."""
    case = patch(1, 16, 1, 2, dtype=torch.float16)
    case = case._replace(
        cos=torch.full((1, 2), 1 + 2.0**-9).to(angles), sin=torch.zeros(1, 2, dtype=angles)
    )
    assert_patched_alike(case, 1e-2)
    got, plain = case.copied(), case.copied()._replace(cos=torch.ones(1, 2))
    patch_rows_triton(*got)
    patch_rows_triton(*plain)
    same = torch.equal(got.keys[:, case.rows], plain.keys[:, case.rows].to(angles).half())
    assert same == (angles == torch.bfloat16)


def test_keys_are_rounded_to_the_precision_of_the_angles_before_they_turn() -> None:
    assert_patched_alike(patch(4, 16, 1, 16, angles=torch.float16), 1e-5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("patch_rows", [patch_rows_torch, patch_rows_triton])
def test_rows_are_those_of_a_forward(patch_rows: object, bias: bool) -> None:
    """Weights and store are slices, as the engine holds them; other rows stay as they were."""
    heads, kv_heads, size, width, count = 4, 2, 8, 20, 6
    base = patch(count, width, kv_heads, size)
    qkv = torch.randn((heads + 2 * kv_heads) * size, width + 3)[:, :width]
    layer = LayerWeights(
        base.norm_weight, qkv, torch.randn(qkv.shape[0]) if bias else None,
        *([torch.empty(0)] * 4),
    )  # fmt: skip
    store = torch.randn(2, 3, 2, kv_heads, count + 5, size)  # [K or V, L, S, G, T, h]
    before, chosen = store.clone(), store[:, 2, 1]
    own = slice(heads * size, None)
    case = base._replace(
        x=torch.randn(count, 2 * width)[:, :width],
        kv_weight=qkv[own],
        kv_bias=None if layer.qkv_bias is None else layer.qkv_bias[own],
        keys=chosen[0],
        values=chosen[1],
    )
    assert callable(patch_rows)
    patch_rows(*case)
    normed = rms_norm(case.x[None], layer.attn_norm, EPS)
    _, k, v = project_qkv(normed, layer, heads, kv_heads)
    k = rotate(k, Rotation(case.cos[None], case.sin[None]))
    expected = before
    expected[0, 2, 1][:, case.rows] = k[0]
    expected[1, 2, 1][:, case.rows] = v[0]
    torch.testing.assert_close(store, expected, rtol=1e-5, atol=1e-5)
    others = torch.ones(count + 5, dtype=torch.bool)
    others[case.rows] = False
    assert torch.equal(store[..., others, :], expected[..., others, :])


def test_the_store_may_have_another_dtype() -> None:
    case = patch(4, 30, 2, 16)
    assert_patched_alike(case._replace(keys=case.keys.half(), values=case.values.half()), 2e-3)


@pytest.mark.parametrize("name", ["x", "kv_weight", "cos", "keys", "values"])
def test_strides_that_the_kernel_cannot_read_are_refused(name: str) -> None:
    case = patch(4, 16, 1, 16)
    turned = getattr(case, name).transpose(-1, -2).contiguous().transpose(-1, -2)
    with pytest.raises(ValueError, match=f"{name} has strides"):
        patch_rows_triton(*case._replace(**{name: turned}))
