from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dllmx.caches.polestar_states import RESIDUAL_FORMATS, hold


def near_centroids() -> tuple[Tensor, Tensor]:
    """States, and the centroids that they lie close to."""
    generator = torch.Generator().manual_seed(0)
    centroids = 10 * torch.randn(12, 64, generator=generator)
    return centroids + torch.randn(12, 64, generator=generator), centroids


def error(form: str) -> float:
    states, centroids = near_centroids()
    found = hold(states, centroids, form).states(centroids)
    return float((found - states).norm() / states.norm())


def test_states_come_back_as_exactly_as_their_format_allows() -> None:
    assert error("none") == 0
    assert max(error(form) for form in ("fp16", "fp8", "int8")) < 5e-3
    assert error("nvfp4") < error("mxfp4") < 0.05
    assert error("int2") > 2 * error("mxfp4")


def test_what_is_encoded_is_the_distance_from_the_centroid_unless_said_otherwise() -> None:
    assert error("nvfp4") < error("nvfp4-direct") / 5
    states, centroids = near_centroids()
    moved = hold(states, centroids, "nvfp4").states(centroids + 1)
    torch.testing.assert_close(moved, hold(states, centroids, "nvfp4").states(centroids) + 1)
    direct = hold(states, centroids, "nvfp4-direct")
    assert torch.equal(direct.states(centroids + 1), direct.states(centroids))


@pytest.mark.parametrize("form", RESIDUAL_FORMATS)
def test_half_precision_states_take_the_bytes_of_their_format(form: str) -> None:
    states, centroids = near_centroids()
    held = hold(states.bfloat16(), centroids, form)
    bits = {"none": 16, "fp16": 16, "fp8": 8, "int8": 8 + 16 / 64, "mxfp4": 4 + 8 / 32}
    bits |= {"nvfp4": 4 + 8 / 16, "nvfp4-direct": 4 + 8 / 16, "int2": 2 + 8 / 16}
    assert held.nbytes == 12 * 64 * bits[form] / 8
    assert held.states(centroids).dtype == torch.float32
