from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dllmx.kernels.attention_tiles import splits, tiles
from dllmx.kernels.row_attention import (
    READ_OUTS,
    RowAttention,
    row_attention_torch,
    row_attention_triton,
)
from dllmx.models.layers import attend, project_qkv

Inputs = tuple[Tensor, Tensor, Tensor]


def inputs(
    batch: int,
    heads: int,
    groups: int,
    rows: int,
    count: int,
    size: int,
    dtype: torch.dtype = torch.float32,
    scale: float = 1.0,
) -> Inputs:
    generator = torch.Generator().manual_seed(rows * 1000 + count)
    q = torch.randn(batch, heads, rows, size, generator=generator) * scale
    keys = torch.randn(batch, groups, count, size, generator=generator)
    values = torch.randn(batch, groups, count, size, generator=generator)
    return q.to(dtype), keys.to(dtype), values.to(dtype)


def random_mask(kind: str, batch: int, rows: int, count: int) -> Tensor | None:
    generator = torch.Generator().manual_seed(count)
    shape = {"none": None, "columns": (batch, count), "rows": (batch, rows, count)}[kind]
    return None if shape is None else torch.rand(shape, generator=generator) < 0.5


def assert_close(got: RowAttention, expected: RowAttention, tolerance: float) -> None:
    assert got.mixed.dtype == expected.mixed.dtype
    torch.testing.assert_close(got.mixed, expected.mixed, rtol=tolerance, atol=tolerance)
    for name in READ_OUTS:
        ours, theirs = getattr(got, name), getattr(expected, name)
        assert (ours is None) == (theirs is None), name
        if ours is not None:
            assert ours.dtype == torch.float32
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, msg=name)


@settings(max_examples=40)
@given(
    batch=st.integers(1, 2),
    groups=st.integers(1, 2),
    shared=st.integers(1, 3),
    rows=st.integers(1, 40),
    count=st.integers(1, 150),
    size=st.sampled_from([8, 16, 20, 64]),
    mask=st.sampled_from(["none", "columns", "rows"]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    read=st.sets(st.sampled_from(READ_OUTS)),
)
def test_kernel_equals_its_twin(
    batch: int,
    groups: int,
    shared: int,
    rows: int,
    count: int,
    size: int,
    mask: str,
    dtype: torch.dtype,
    read: set[str],
) -> None:
    q, keys, values = inputs(batch, groups * shared, groups, rows, count, size, dtype)
    visible = random_mask(mask, batch, rows, count)
    got = row_attention_triton(q, keys, values, visible, tuple(read))
    expected = row_attention_torch(q, keys, values, visible, tuple(read))
    assert_close(got, expected, 1e-5 if dtype == torch.float32 else 2e-2)


def test_kernel_is_no_further_from_float64_than_its_twin_in_half_precision() -> None:
    exact = inputs(1, 4, 2, 24, 96, 32)
    rounded = tuple(tensor.half() for tensor in exact)  # interpreted bfloat16 stores truncate
    reference = attend(*(tensor.double() for tensor in rounded), None)
    ours = (row_attention_triton(*rounded).mixed.double() - reference).abs().max()
    theirs = (row_attention_torch(*rounded).mixed.double() - reference).abs().max()
    assert float(ours) <= 1.5 * float(theirs)


@pytest.mark.parametrize("kind", ["none", "columns", "rows"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_twin_that_reads_nothing_out_is_the_models_attention_bit_for_bit(
    kind: str, dtype: torch.dtype
) -> None:
    q, keys, values = inputs(2, 6, 2, 5, 33, 16, dtype)
    visible = random_mask(kind, 2, 5, 33)
    got = row_attention_torch(q, keys, values, visible)
    assert torch.equal(got.mixed, attend(q, keys, values, visible))
    assert got[1:] == (None, None, None)


def test_read_outs_of_the_twin_are_those_of_a_float64_softmax() -> None:
    q, keys, values = inputs(2, 4, 2, 7, 19, 16)
    visible = random_mask("columns", 2, 7, 19)
    assert visible is not None
    scores = q.double() @ keys.double().repeat_interleave(2, 1).transpose(2, 3) / 4
    scores = scores.masked_fill(~visible[:, None, None], -torch.inf)
    mean = scores.softmax(-1).mean(1)
    exact = RowAttention(
        attend(q.double(), keys.double(), values.double(), visible).float(),
        scores.logsumexp(-1).float(),
        mean.float(),
        mean.sum(1).float(),
    )
    assert_close(row_attention_torch(q, keys, values, visible, READ_OUTS), exact, 1e-5)


@pytest.mark.parametrize("attention", [row_attention_torch, row_attention_triton])
@pytest.mark.parametrize("count", [30, 600])  # with 600 the keys are split
def test_rows_that_see_nothing_give_zeros(attention, count: int) -> None:  # type: ignore[no-untyped-def]
    q, keys, values = inputs(2, 2, 1, 3, count, 16)
    visible = torch.ones(2, 3, count, dtype=torch.bool)
    visible[0, 1], visible[1] = False, False
    got = attention(q, keys, values, visible, READ_OUTS)
    assert not any(tensor.isnan().any() for tensor in got)
    assert float(got.mixed[0, 1].abs().max()) == float(got.mixed[1].abs().max()) == 0.0
    assert float(got.head_mean[1].max()) == float(got.column_sums[1].max()) == 0.0
    assert bool((got.log_sum_exp[1] == -torch.inf).all())
    torch.testing.assert_close(got.head_mean[0].sum(-1), torch.tensor([1.0, 0.0, 1.0]))


@pytest.mark.parametrize("seen", [1, 40, 333])
def test_split_keys_are_merged_even_where_a_split_sees_none(seen: int) -> None:
    q, keys, values = inputs(1, 2, 1, 20, 700, 16)
    assert splits(2, 700, tiles(20, 16, 4).keys, 132) > 1
    visible = torch.zeros(1, 700, dtype=torch.bool)
    visible[:, :seen] = True
    got = row_attention_triton(q, keys, values, visible, READ_OUTS)
    assert_close(got, row_attention_torch(q, keys, values, visible, READ_OUTS), 1e-5)


@pytest.mark.parametrize("scale", [1e2, 1e4])
def test_peaked_scores_stay_finite_and_equal(scale: float) -> None:
    q, keys, values = inputs(1, 2, 1, 9, 70, 16, scale=scale)
    got = row_attention_triton(q, keys, values, None, READ_OUTS)
    expected = row_attention_torch(q, keys, values, None, READ_OUTS)
    assert all(bool(tensor.isfinite().all()) for tensor in got)
    torch.testing.assert_close(got.log_sum_exp, expected.log_sum_exp, rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(got.mixed, expected.mixed, rtol=1e-2, atol=1e-2)


def test_projections_are_read_through_their_strides() -> None:
    class Layer:
        qkv = torch.randn(8 * 16, 32, generator=torch.Generator().manual_seed(0))
        qkv_bias = None

    rows = torch.randn(2, 21, 32, generator=torch.Generator().manual_seed(1)) / 6
    q, keys, values = project_qkv(rows, Layer(), heads=4, kv_heads=2)  # type: ignore[arg-type]
    assert not q.is_contiguous()
    visible = random_mask("rows", 2, 42, 21)
    assert visible is not None
    got = row_attention_triton(q, keys, values, visible[:, ::2], READ_OUTS)
    expected = row_attention_torch(q, keys, values, visible[:, ::2], READ_OUTS)
    assert_close(got, expected, 1e-5)


def test_a_nan_stays_in_its_row() -> None:
    q, keys, values = inputs(1, 1, 1, 4, 20, 16)
    q[0, 0, 2, 3] = torch.nan
    got = row_attention_triton(q, keys, values).mixed[0]
    assert got.isnan().any(-1).tolist() == [False, False, True, False]


@pytest.mark.parametrize(("rows", "heads", "groups"), [(32, 2, 2), (48, 7, 1), (300, 1, 1)])
def test_kernel_equals_its_twin_at_the_models_width(rows: int, heads: int, groups: int) -> None:
    q, keys, values = inputs(1, heads, groups, rows, 1280, 128, torch.bfloat16)
    got = row_attention_triton(q, keys, values, None, READ_OUTS)
    assert_close(got, row_attention_torch(q, keys, values, None, READ_OUTS), 2e-2)


def test_tiles_follow_the_rows_and_keep_tensor_cores_fed() -> None:
    shapes = {rows: tiles(rows, 128, 2)[:3] for rows in (1, 16, 32, 48, 200, 512, 1280)}
    assert shapes == {
        1: (16, 64, 4),
        16: (16, 64, 4),
        32: (32, 64, 4),
        48: (64, 64, 4),
        200: (64, 64, 4),
        512: (128, 64, 8),
        1280: (128, 64, 8),
    }
    assert tiles(1280, 128, 2, mask=3)[:3] == (64, 32, 8)
    assert tiles(1280, 256, 2)[:2] == (64, 32)
    assert tiles(1280, 128, 4)[:2] == (16, 32)


def test_keys_are_split_only_where_processors_would_idle() -> None:
    assert splits(32, 1280, 64, 132) == 4
    assert splits(32, 200, 64, 132) == 1  # too few keys to share
    assert splits(320, 1280, 64, 132) == 1  # enough programs
    assert splits(1, 100_000, 64, 132) == 16


@pytest.mark.parametrize("attention", [row_attention_torch, row_attention_triton])
def test_an_unknown_read_out_and_scattered_elements_are_refused(attention) -> None:  # type: ignore[no-untyped-def]
    q, keys, values = inputs(1, 1, 1, 2, 3, 16)
    with pytest.raises(ValueError, match="'entropy'; there are log_sum_exp, head_mean"):
        attention(q, keys, values, None, ("entropy",))
    if attention is row_attention_triton:
        with pytest.raises(ValueError, match="values has strides"):
            attention(q, keys, values.transpose(2, 3), None, ())
