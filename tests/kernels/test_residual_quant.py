from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dllmx.kernels.residual_quant import E2M1, FORMATS, dequantise_torch, quantise_torch

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
