"""Block-scaled formats for hidden states kept as residuals around their centroid.

Polestar (arXiv 2607.14107, appendix C.3) stores the states of its window as H - Z, along channels:

| format | element | group and scale | bits an element |
|---|---|---|---|
| fp16 | half precision | none | 16 |
| fp8 | E4M3 | none | 8 |
| int8 | -127..127 | float16 a row | 8 |
| mxfp4 | E2M1 | 32 channels, power of two (E8M0) | 4 |
| nvfp4 | E2M1 | 16 channels, E4M3 | 4 |
| int2 | -2..1 | 16 channels, E4M3 | 2 |

Element and scale formats are those of the OCP Microscaling specification 1.0 (mxfp4) and of the
paper (nvfp4); the paper does not give those of int8 and int2.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

FORMATS = ("fp16", "fp8", "int8", "mxfp4", "nvfp4", "int2")
GROUP = {"mxfp4": 32, "nvfp4": 16, "int2": 16}
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
LARGEST_E2M1 = 6.0
LARGEST_E4M3 = 448.0
SMALLEST_E4M3 = 2.0**-9
INT2_RANGE = (-2, 1)


class Quantised(NamedTuple):
    """``codes`` packed [N, bytes], ``scales`` [N, groups] or None, of rows of ``width`` values."""

    form: str
    codes: Tensor
    scales: Tensor | None
    width: int

    @property
    def nbytes(self) -> int:
        """Size of codes and scales in bytes."""
        return self.codes.nbytes + (0 if self.scales is None else self.scales.nbytes)


def quantise_torch(values: Tensor, form: str) -> Quantised:
    """Encode ``values`` [N, D] (any float dtype); D is padded with zeros to whole groups."""
    x = values.float()
    width = x.shape[-1]
    if form == "fp16":
        return Quantised(form, x.half(), None, width)
    if form == "fp8":
        clamped = x.clamp(-LARGEST_E4M3, LARGEST_E4M3)
        return Quantised(form, clamped.to(torch.float8_e4m3fn), None, width)
    if form == "int8":
        scale = (x.abs().amax(-1, keepdim=True) / 127).half()
        codes = (x / _nonzero(scale)).round().clamp(-127, 127).to(torch.int8)
        return Quantised(form, codes, scale, width)
    groups = _grouped(x, GROUP[form])  # [N, groups, size]
    largest = groups.abs().amax(-1)
    if form == "mxfp4":
        scale = _power_of_two(largest)
        steps = groups / scale.float().exp2()[..., None]
    else:
        top = LARGEST_E2M1 if form == "nvfp4" else -float(INT2_RANGE[0])
        scale = (largest / top).clamp(SMALLEST_E4M3, LARGEST_E4M3).to(torch.float8_e4m3fn)
        steps = groups / scale.float()[..., None]
    if form == "int2":
        codes = steps.round().clamp(*INT2_RANGE).long() - INT2_RANGE[0]
        return Quantised(form, _pack(codes.flatten(1), bits=2), scale, width)
    return Quantised(form, _pack(_e2m1_codes(steps).flatten(1), bits=4), scale, width)


def dequantise_torch(stored: Quantised) -> Tensor:
    """Decode to [N, D] float32."""
    if stored.scales is None:
        return stored.codes.float()
    if stored.form == "int8":
        return stored.codes.float() * stored.scales.float()
    size = GROUP[stored.form]
    bits = 2 if stored.form == "int2" else 4
    codes = _unpack(stored.codes, bits).unflatten(1, (-1, size))  # [N, groups, size]
    if stored.form == "int2":
        elements = (codes + INT2_RANGE[0]).float()
    else:
        magnitude = E2M1.to(codes.device)[codes & 7]
        elements = torch.where(codes >= 8, -magnitude, magnitude)
    scale = stored.scales.float()
    if stored.form == "mxfp4":
        scale = scale.exp2()
    return (elements * scale[..., None]).flatten(1)[:, : stored.width]


def _nonzero(scale: Tensor) -> Tensor:
    wide = scale.float()
    return torch.where(wide == 0, torch.ones_like(wide), wide)


def _grouped(x: Tensor, size: int) -> Tensor:
    missing = -x.shape[-1] % size
    return torch.nn.functional.pad(x, (0, missing)).unflatten(-1, (-1, size))


def _power_of_two(largest: Tensor) -> Tensor:
    """E8M0 exponent [N, groups] int8: that of the largest value, less E2M1's own largest (2)."""
    exponent = torch.frexp(largest).exponent - 1 - 2
    exponent = torch.where(largest == 0, torch.full_like(exponent, -127), exponent)
    return exponent.clamp(-127, 127).to(torch.int8)


def _e2m1_codes(steps: Tensor) -> Tensor:
    """Nearest E2M1 value, ties to even codes, saturating; bit 3 is the sign."""
    values = E2M1.to(steps.device)
    magnitude = steps.abs().clamp(max=LARGEST_E2M1)
    above = torch.bucketize(magnitude, values).clamp(1, len(values) - 1)
    below = above - 1
    to_above, to_below = values[above] - magnitude, magnitude - values[below]
    nearer_above = (to_above < to_below) | ((to_above == to_below) & (above % 2 == 0))
    code = torch.where(nearer_above, above, below)
    return code + 8 * ((steps < 0) & (code > 0)).long()


def _pack(codes: Tensor, bits: int) -> Tensor:
    """Codes [N, n] to bytes [N, n * bits / 8], the first code in the lowest bits."""
    places = torch.arange(0, 8, bits, device=codes.device)
    grouped = codes.unflatten(1, (-1, 8 // bits))
    return (grouped << places).sum(-1).to(torch.uint8)


def _unpack(packed: Tensor, bits: int) -> Tensor:
    places = torch.arange(0, 8, bits, device=packed.device)
    return ((packed.long()[..., None] >> places) & (2**bits - 1)).flatten(1)
