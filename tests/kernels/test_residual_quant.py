from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dllmx.kernels.residual_quant import (
    CHUNK,
    E2M1,
    FORMATS,
    Quantised,
    dequantise_normed_torch,
    dequantise_normed_triton,
    dequantise_torch,
    dequantise_triton,
    quantise_torch,
    quantise_triton,
)
from dllmx.models.layers import rms_norm

BITS = {"fp16": 16, "fp8": 8, "int8": 8, "mxfp4": 4, "nvfp4": 4, "int2": 2}
SCALE_BYTES = {"fp16": 0, "fp8": 0, "int8": 2, "mxfp4": 64 / 32, "nvfp4": 64 / 16, "int2": 64 / 16}


def values(rows: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def error(form: str, x: torch.Tensor) -> float:
    return float((dequantise_torch(quantise_torch(x, form)) - x).norm() / x.norm())


@settings(deadline=None, max_examples=40)
@given(
    form=st.sampled_from(FORMATS), rows=st.integers(1, 5), width=st.integers(1, 70),
    scale=st.sampled_from([1e-3, 1.0, 100.0]), seed=st.integers(0, 99),
)  # fmt: skip
def test_a_second_pass_changes_nothing(
    form: str, rows: int, width: int, scale: float, seed: int
) -> None:
    once = dequantise_torch(quantise_torch(values(rows, width, seed) * scale, form))
    assert once.shape == (rows, width)
    assert bool(torch.isfinite(once).all())
    if form in ("fp16", "fp8"):
        assert torch.equal(dequantise_torch(quantise_torch(once, form)), once)


@pytest.mark.parametrize("form", FORMATS)
def test_the_stored_size_is_that_of_the_format(form: str) -> None:
    stored = quantise_torch(values(10, 64), form)
    assert stored.nbytes == 10 * (64 * BITS[form] / 8 + SCALE_BYTES[form])


def test_errors_are_ordered_by_the_precision_of_the_formats() -> None:
    x = values(64, 256)
    errors = [error(form, x) for form in ("fp16", "int8", "fp8", "nvfp4", "mxfp4", "int2")]
    assert errors == sorted(errors)
    assert errors[0] < 1e-3
    assert errors[3] < 0.15
    assert errors[5] > 0.3


@pytest.mark.parametrize("form", ["nvfp4", "mxfp4"])
def test_e2m1_values_of_a_representable_scale_survive(form: str) -> None:
    x = torch.cat([E2M1, -E2M1, E2M1, -E2M1])[None] * 2.0
    torch.testing.assert_close(dequantise_torch(quantise_torch(x, form)), x)


def test_ties_go_to_even_codes() -> None:
    x = torch.tensor([[6.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0] + [0.0] * 8])
    got = dequantise_torch(quantise_torch(x, "nvfp4"))[0, :8]
    assert got.tolist() == [6.0, 0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0]


def test_zero_rows_and_tiny_rows_stay_finite() -> None:
    x = torch.zeros(3, 40)
    x[1] = 1e-7
    for form in FORMATS:
        got = dequantise_torch(quantise_torch(x, form))
        assert bool(torch.isfinite(got).all())
        assert bool((got[0] == 0).all())


def test_nvfp4_takes_a_scale_for_every_sixteen_channels() -> None:
    x = torch.ones(1, 32)
    x[0, 16:] = 100.0
    torch.testing.assert_close(dequantise_torch(quantise_torch(x, "nvfp4")), x, rtol=0.07, atol=0)


def assert_same_bits(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    if got.dtype == torch.float32:  # which of the NaNs does not matter
        got, expected = got.nan_to_num(1e9, torch.inf), expected.nan_to_num(1e9, torch.inf)
    assert torch.equal(got.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8))


def assert_encoded_alike(x: torch.Tensor, form: str) -> None:
    got, expected = quantise_triton(x, form), quantise_torch(x, form)
    assert (got.form, got.width) == (expected.form, expected.width)
    assert_same_bits(got.codes, expected.codes)
    assert (got.scales is None) == (expected.scales is None)
    if got.scales is not None:
        assert expected.scales is not None
        assert_same_bits(got.scales, expected.scales)
    assert_same_bits(dequantise_triton(expected), dequantise_torch(expected))


def with_neighbours(x: torch.Tensor) -> torch.Tensor:
    """``x``, the floats beside each of them, and all their negatives."""
    infinity = torch.full_like(x, torch.inf)
    near = torch.cat([x, torch.nextafter(x, infinity), torch.nextafter(x, -infinity)])
    return torch.cat([near, -near])


def middles(x: torch.Tensor) -> torch.Tensor:
    return (x[1:] + x[:-1]) / 2


def e4m3_values() -> torch.Tensor:
    """All E4M3 numbers from 0 to 448."""
    return torch.arange(0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).float()


@settings(max_examples=60)
@given(
    form=st.sampled_from(FORMATS), rows=st.integers(1, 4),
    width=st.integers(1, 70) | st.sampled_from([CHUNK, CHUNK + 1, 2 * CHUNK + 40]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    scale=st.sampled_from([1e-8, 1e-3, 1.0, 100.0]), seed=st.integers(0, 99),
)  # fmt: skip
def test_kernels_encode_and_decode_to_the_same_bits(
    form: str, rows: int, width: int, dtype: torch.dtype, scale: float, seed: int
) -> None:
    assert_encoded_alike((values(rows, width, seed) * scale).to(dtype), form)


@pytest.mark.parametrize("form", FORMATS)
def test_kernels_encode_a_real_width_of_any_row_stride(form: str) -> None:
    x = values(2, 4100)
    assert_encoded_alike(x[:, :4096], form)
    with pytest.raises(ValueError, match="values have strides"):
        quantise_triton(x.T, form)


def test_the_fp8_kernel_rounds_ties_saturates_and_keeps_nan() -> None:
    numbers = torch.cat([e4m3_values(), middles(e4m3_values())])
    extremes = torch.tensor([464.0, 465.0, 480.0, 1e30, torch.inf, 1e-10, 1e-44])
    x = torch.cat([with_neighbours(numbers), extremes, -extremes, torch.tensor([torch.nan, -0.0])])
    assert_encoded_alike(x[None], "fp8")


@pytest.mark.parametrize("form", ["mxfp4", "nvfp4"])
@pytest.mark.parametrize("scale", [2.0**-9, 2.0**-3, 1.0, 448.0])
def test_the_e2m1_kernel_rounds_ties(form: str, scale: float) -> None:
    near = with_neighbours(torch.cat([E2M1, middles(E2M1)])) * scale
    groups = near.split(8)
    padded = [torch.cat([group, near.new_full((1,), 6.0 * scale), near.new_zeros(7)])
              for group in groups if len(group) == 8]  # fmt: skip
    assert_encoded_alike(torch.cat(padded)[None], form)


@pytest.mark.parametrize("form", ["nvfp4", "int2"])
def test_kernels_round_scales_at_ties_and_clamp_them(form: str) -> None:
    top = 6.0 if form == "nvfp4" else 2.0
    numbers = torch.cat([e4m3_values(), middles(e4m3_values()), torch.tensor([1e-6, 500.0, 1e30])])
    largest = with_neighbours(numbers * top)
    x = torch.cat([largest[:, None], values(len(largest), 15)], dim=1)
    assert_encoded_alike(x.reshape(1, -1), form)


def test_the_mxfp4_kernel_scales_by_powers_of_two_down_to_subnormals() -> None:
    exponents = torch.arange(-126, 128).float()
    largest = torch.cat([with_neighbours(exponents.exp2()), torch.tensor([1e-44, 5e-39, 3.4e38])])
    x = torch.cat([largest[:, None], largest[:, None] * values(len(largest), 31).sin()], dim=1)
    assert_encoded_alike(x.reshape(1, -1), "mxfp4")


@pytest.mark.parametrize(("form", "low", "high"), [("int8", -127, 127), ("int2", -2, 1)])
def test_kernels_round_integers_at_ties(form: str, low: int, high: int) -> None:
    """The largest makes the scale 1; the others are halves."""
    width = 16 if form == "int2" else 300
    halves = with_neighbours(torch.arange(low - 1, high + 1) + 0.5).clamp(-127, 127)
    for part in halves.split(width - 1):
        assert_encoded_alike(torch.cat([part, torch.tensor([float(low)])])[None], form)


def test_the_int8_kernel_rounds_scales_at_ties_and_clamps_beside_the_coarsest() -> None:
    halves = torch.linspace(1e-7, 200, 30).half()
    above = torch.nextafter(halves, torch.full_like(halves, torch.inf))
    largest = with_neighbours((halves.float() + above.float()) / 2 * 127)
    assert_encoded_alike(torch.stack([largest, largest / 3], dim=1), "int8")
    assert_encoded_alike(torch.tensor([[1.1e-5, -1.1e-5, 1e-6]]), "int8")  # 185 smallest scales


@pytest.mark.parametrize("form", FORMATS)
def test_kernels_encode_zero_rows_and_tiny_rows_alike(form: str) -> None:
    x = torch.zeros(4, 40)
    x[1], x[2], x[3, 7] = 1e-7, 1e-41, -0.0
    assert_encoded_alike(x, form)


@pytest.mark.parametrize("form", FORMATS)
def test_kernels_decode_every_code_at_every_scale(form: str) -> None:
    every = torch.arange(256).to(torch.uint8)
    codes = every.repeat(64) if form == "fp16" else every
    if form == "fp16":
        stored = Quantised(
            form, torch.arange(0x7C00).short().view(torch.float16)[None], None, 0x7C00
        )
    elif form == "fp8":
        stored = Quantised(form, codes.view(torch.float8_e4m3fn)[None], None, 256)
    elif form == "int8":
        scale = torch.tensor([[0.0], [6e-8], [0.1], [65504.0]]).half()
        stored = Quantised(form, codes.view(torch.int8).expand(4, -1).contiguous(), scale, 256)
    else:
        size = {"mxfp4": 16, "nvfp4": 8, "int2": 4}[form]  # bytes a group
        scale = torch.arange(-127, 126) if form == "mxfp4" else torch.arange(0x7F)
        scale = scale.to(torch.int8)
        scales = scale[:, None].expand(-1, 256 // size).contiguous()
        if form != "mxfp4":
            scales = scales.view(torch.float8_e4m3fn)
        width = 256 * (4 if form == "int2" else 2)
        stored = Quantised(form, codes.expand(len(scale), -1).contiguous(), scales, width)
    assert_same_bits(dequantise_triton(stored), dequantise_torch(stored))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_norm_is_that_of_a_forward(dtype: torch.dtype) -> None:
    stored, centroids = quantise_torch(values(3, 48), "nvfp4"), values(3, 48, seed=1)
    weight = values(1, 48, seed=2)[0].to(dtype)
    expected = rms_norm((dequantise_torch(stored) + centroids).to(dtype), weight, 1e-5)
    assert_same_bits(dequantise_normed_torch(stored, centroids, weight, 1e-5, dtype), expected)


@settings(max_examples=30)
@given(
    form=st.sampled_from(FORMATS), rows=st.integers(1, 3), width=st.integers(1, 70),
    eps=st.sampled_from([1e-6, 1e-2]), seed=st.integers(0, 99),
)  # fmt: skip
def test_the_normed_kernel_is_its_twin(
    form: str, rows: int, width: int, eps: float, seed: int
) -> None:
    stored = quantise_torch(values(rows, width, seed) * 0.3, form)
    centroids = values(rows, width + 3, seed + 1)[:, :width]
    weight = values(1, width, seed + 2)[0]
    arguments = stored, centroids, weight, eps, torch.float32
    got, expected = dequantise_normed_triton(*arguments), dequantise_normed_torch(*arguments)
    assert got.dtype == expected.dtype
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", FORMATS)
def test_the_normed_kernel_at_a_real_width_in_half_precision(form: str) -> None:
    """The interpreter cuts off where a GPU rounds to bfloat16: two units in the last place."""
    stored, centroids = quantise_torch(values(2, 3584) * 0.3, form), values(2, 3584, seed=1)
    weight = values(1, 3584, seed=2)[0].bfloat16()
    arguments = stored, centroids, weight, 1e-6, torch.bfloat16
    got, expected = dequantise_normed_triton(*arguments), dequantise_normed_torch(*arguments)
    assert got.dtype == expected.dtype
    torch.testing.assert_close(got.float(), expected.float(), rtol=2.5e-2, atol=1e-3)
    with pytest.raises(ValueError, match="centroids have strides"):
        dequantise_normed_triton(stored, values(3584, 2).T, weight, 1e-6, torch.bfloat16)


def test_the_normed_kernel_rounds_the_states_before_the_norm() -> None:
    """As a forward does, which holds them in its dtype; float16, which is rounded right here."""
    stored, centroids = quantise_torch(values(4, 500), "int8"), values(4, 500, seed=1)
    weight = values(1, 500, seed=2)[0].half()
    arguments = stored, centroids, weight, 1e-6, torch.float16
    got, expected = dequantise_normed_triton(*arguments), dequantise_normed_torch(*arguments)
    assert float((got != expected).float().mean()) < 0.02
