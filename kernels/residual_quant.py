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

The kernels give the codes and scales of their twins to the bit, for finite values.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from dllmx.kernels.block_formats import (
    from_e2m1,
    from_e4m3,
    group_scales,
    power_of_two,
    to_e2m1,
    to_e4m3,
    to_integer,
)
from dllmx.kernels.compiled import Variant
from dllmx.kernels.language import jit, next_power_of_2, tl
from dllmx.kernels.projection import rms_norm

FORMATS = ("fp16", "fp8", "int8", "mxfp4", "nvfp4", "int2")
GROUP = {"mxfp4": 32, "nvfp4": 16, "int2": 16}
CODES = {
    "fp16": torch.float16, "fp8": torch.float8_e4m3fn, "int8": torch.int8,
    "mxfp4": torch.uint8, "nvfp4": torch.uint8, "int2": torch.uint8,
}  # fmt: skip
SCALES = {
    "int8": torch.float16, "mxfp4": torch.int8,
    "nvfp4": torch.float8_e4m3fn, "int2": torch.float8_e4m3fn,
}  # fmt: skip
BITS = {"mxfp4": 4, "nvfp4": 4, "int2": 2}
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
LARGEST_E2M1 = 6.0
LARGEST_E4M3 = 448.0
SMALLEST_E4M3 = 2.0**-9
INT2_RANGE = (-2, 1)
CHUNK = 1024  # columns of a program that need not see its whole row
LEAST_COLUMNS = 32  # a whole group of any format
ROW_WARPS = 8  # of a program that sees a whole row
STAGES = 1  # there is no loop to pipeline


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
        scale = _divided(x.abs().amax(-1, keepdim=True), 127.0).half()
        codes = (x / _nonzero(scale)).round().clamp(-127, 127).to(torch.int8)
        return Quantised(form, codes, scale, width)
    groups = _grouped(x, GROUP[form])  # [N, groups, size]
    largest = groups.abs().amax(-1)
    if form == "mxfp4":
        scale = _power_of_two(largest)
        steps = groups / scale.float().exp2()[..., None]
    else:
        top = LARGEST_E2M1 if form == "nvfp4" else -float(INT2_RANGE[0])
        scale = _divided(largest, top).clamp(SMALLEST_E4M3, LARGEST_E4M3).to(torch.float8_e4m3fn)
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
    codes = _unpack(stored.codes, BITS[stored.form]).unflatten(1, (-1, size))  # [N, groups, size]
    if stored.form == "int2":
        elements = (codes + INT2_RANGE[0]).float()
    else:
        magnitude = E2M1.to(codes.device)[codes & 7]
        elements = torch.where(codes >= 8, -magnitude, magnitude)
    scale = stored.scales.float()
    if stored.form == "mxfp4":
        scale = scale.exp2()
    return (elements * scale[..., None]).flatten(1)[:, : stored.width]


def dequantise_normed_torch(
    stored: Quantised, centroids: Tensor, norm_weight: Tensor, eps: float, dtype: torch.dtype
) -> Tensor:
    """RMSNorm [N, D] of the states that ``stored`` residuals and ``centroids`` [N, D] float32 make.

    The states are those of ``dtype``, as a forward takes them, and so is ``norm_weight`` [D].
    """
    return rms_norm((dequantise_torch(stored) + centroids).to(dtype), norm_weight, eps)


def _divided(largest: Tensor, top: float) -> Tensor:
    """``largest`` over ``top`` rounded to nearest: by a number, CUDA multiplies by its inverse."""
    return largest / largest.new_full((), top)


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


@jit
def quantise_kernel(  # type: ignore[no-untyped-def]
    values, codes, scales, row_stride, width, groups,
    FORM: tl.constexpr, SIZE: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program a chunk of a row; SIZE columns share a scale. int8: a chunk is the whole row."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = chunk * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    x = tl.load(values + row * row_stride + column, mask=inside, other=0.0).to(tl.float32)
    if FORM == "fp16":
        tl.store(codes + row * width + column, x.to(tl.float16), mask=inside)
    elif FORM == "fp8":
        tl.store(codes + row * width + column, to_e4m3(x).to(tl.uint8), mask=inside)
    elif FORM == "int8":
        scale = tl.div_rn(tl.max(tl.abs(x), axis=0), 127.0).to(tl.float16)
        tl.store(scales + row, scale)
        divisor = scale.to(tl.float32)
        steps = tl.div_rn(x, tl.where(divisor == 0, 1.0, divisor))
        code = to_integer(tl.minimum(tl.maximum(steps, -127.0), 127.0))
        tl.store(codes + row * width + column, code.to(tl.int8), mask=inside)
    else:
        PER_BYTE: tl.constexpr = 8 // BITS
        x = tl.reshape(x, (BLOCK // SIZE, SIZE))
        scale, divisor = group_scales(tl.max(tl.abs(x), axis=1), FORM)
        group = chunk * (BLOCK // SIZE) + tl.arange(0, BLOCK // SIZE)
        to_scale = scales + row * groups + group
        tl.store(to_scale, scale.to(scales.dtype.element_ty), mask=group < groups)
        steps = tl.div_rn(x, divisor[:, None])
        if FORM == "int2":
            code = to_integer(tl.minimum(tl.maximum(steps, -2.0), 1.0)) + 2
        else:
            code = to_e2m1(steps)
        code = tl.reshape(code, (BLOCK // PER_BYTE, PER_BYTE))
        packed = tl.sum(code << (tl.arange(0, PER_BYTE) * BITS)[None, :], axis=1)
        byte = chunk * (BLOCK // PER_BYTE) + tl.arange(0, BLOCK // PER_BYTE)
        bytes = groups * (SIZE // PER_BYTE)
        tl.store(codes + row * bytes + byte, packed.to(tl.uint8), mask=byte < bytes)


@jit
def load_values(  # type: ignore[no-untyped-def]
    codes, scales, row, chunk, width, groups,
    FORM: tl.constexpr, SIZE: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Decoded float32 values [BLOCK] of a chunk of a row; zeros beyond its width."""
    column = chunk * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    if FORM == "fp16":
        value = tl.load(codes + row * width + column, mask=inside, other=0.0).to(tl.float32)
    elif FORM == "fp8":
        code = tl.load(codes + row * width + column, mask=inside, other=0)
        value = from_e4m3(code.to(tl.int32))
    elif FORM == "int8":
        code = tl.load(codes + row * width + column, mask=inside, other=0)
        value = code.to(tl.float32) * tl.load(scales + row).to(tl.float32)
    else:
        PER_BYTE: tl.constexpr = 8 // BITS
        bytes = groups * (SIZE // PER_BYTE)
        byte = chunk * (BLOCK // PER_BYTE) + tl.arange(0, BLOCK // PER_BYTE)
        packed = tl.load(codes + row * bytes + byte, mask=byte < bytes, other=0).to(tl.int32)
        code = (packed[:, None] >> (tl.arange(0, PER_BYTE) * BITS)[None, :]) & ((1 << BITS) - 1)
        code = tl.reshape(code, (BLOCK // SIZE, SIZE))
        group = chunk * (BLOCK // SIZE) + tl.arange(0, BLOCK // SIZE)
        scale = tl.load(scales + row * groups + group, mask=group < groups, other=0).to(tl.int32)
        wide = power_of_two(scale) if FORM == "mxfp4" else from_e4m3(scale)
        element = (code - 2).to(tl.float32) if FORM == "int2" else from_e2m1(code)
        value = tl.where(inside, tl.reshape(element * wide[:, None], (BLOCK,)), 0.0)
    return value


@jit
def dequantise_kernel(  # type: ignore[no-untyped-def]
    codes, scales, values, width, groups,
    FORM: tl.constexpr, SIZE: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program a chunk of a row."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    value = load_values(codes, scales, row, chunk, width, groups, FORM, SIZE, BITS, BLOCK)
    column = chunk * BLOCK + tl.arange(0, BLOCK)
    tl.store(values + row * width + column, value, mask=column < width)


@jit
def dequantise_normed_kernel(  # type: ignore[no-untyped-def]
    codes, scales, centroids, norm_weight, normed, centroid_stride, width, groups, eps,
    FORM: tl.constexpr, SIZE: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program a row; it is read once and stays in registers."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    residual = load_values(codes, scales, row, 0, width, groups, FORM, SIZE, BITS, BLOCK)
    centroid = tl.load(centroids + row * centroid_stride + column, mask=inside, other=0.0)
    weight = tl.load(norm_weight + column, mask=inside, other=0.0).to(tl.float32)
    state = (residual + centroid.to(tl.float32)).to(normed.dtype.element_ty).to(tl.float32)
    unit = state * tl.rsqrt(tl.sum(state * state, axis=0) / width + eps)
    unit = unit.to(normed.dtype.element_ty).to(tl.float32)
    tl.store(normed + row * width + column, unit * weight, mask=inside)


def quantise_triton(values: Tensor, form: str) -> Quantised:
    """``quantise_torch`` in one launch: each value is read once."""
    _check_rows("values", values)
    rows, width = values.shape
    groups = -(-width // GROUP[form]) if form in GROUP else 1
    codes = values.new_empty(rows, _code_columns(form, width, groups), dtype=CODES[form])
    scales = None
    if form in SCALES:
        scales = values.new_empty(rows, groups, dtype=SCALES[form])
    fixed = _constants(form, width, whole_rows=form == "int8")
    quantise_kernel[(rows, -(-width // fixed["BLOCK"]))](
        values, _as_bytes(codes), _as_bytes(codes if scales is None else scales),
        values.stride(0), width, groups, **_launch(fixed),
    )  # fmt: skip
    return Quantised(form, codes, scales, width)


def dequantise_triton(stored: Quantised) -> Tensor:
    """``dequantise_torch`` in one launch."""
    codes, scales, groups = _stored(stored)
    fixed = _constants(stored.form, stored.width, whole_rows=False)
    values = codes.new_empty(codes.shape[0], stored.width, dtype=torch.float32)
    dequantise_kernel[(codes.shape[0], -(-stored.width // fixed["BLOCK"]))](
        codes, scales, values, stored.width, groups, **_launch(fixed),
    )  # fmt: skip
    return values


def dequantise_normed_triton(
    stored: Quantised, centroids: Tensor, norm_weight: Tensor, eps: float, dtype: torch.dtype
) -> Tensor:
    """``dequantise_normed_torch`` in one launch: the states themselves are never in memory."""
    _check_rows("centroids", centroids)
    codes, scales, groups = _stored(stored)
    fixed = _constants(stored.form, stored.width, whole_rows=True)
    normed = codes.new_empty(codes.shape[0], stored.width, dtype=dtype)
    dequantise_normed_kernel[(codes.shape[0],)](
        codes, scales, centroids, norm_weight.contiguous(), normed, centroids.stride(0),
        stored.width, groups, eps, **_launch(fixed),
    )  # fmt: skip
    return normed


def _check_rows(name: str, tensor: Tensor) -> None:
    if tensor.stride(-1) != 1:
        raise ValueError(f"{name} have strides {tensor.stride()}: need 1 in the last dimension")


def _code_columns(form: str, width: int, groups: int) -> int:
    return groups * GROUP[form] * BITS[form] // 8 if form in GROUP else width


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.view(torch.uint8) if tensor.dtype == torch.float8_e4m3fn else tensor


def _stored(stored: Quantised) -> tuple[Tensor, Tensor, int]:
    """Codes, scales (the codes again where there are none) and the number of scales a row."""
    codes = _as_bytes(stored.codes.contiguous())
    if stored.scales is None:
        return codes, codes, 1
    return codes, _as_bytes(stored.scales.contiguous()), stored.scales.shape[1]


def _constants(form: str, width: int, whole_rows: bool) -> dict[str, Any]:
    block = max(next_power_of_2(width), LEAST_COLUMNS)
    block = block if whole_rows else min(block, CHUNK)
    return {"FORM": form, "SIZE": GROUP.get(form, 1), "BITS": BITS.get(form, 8), "BLOCK": block}


def _launch(fixed: dict[str, Any]) -> dict[str, Any]:
    return {**fixed, "num_warps": _warps(fixed["BLOCK"]), "num_stages": STAGES}


def _warps(block: int) -> int:
    return ROW_WARPS if block > CHUNK else 4


def _variant(operation: str, kernel: Any, form: str) -> Variant:
    """``operation`` on bfloat16 states, LLaDA-8B's width."""
    fixed = _constants(form, 4096, whole_rows="normed" in operation or form == "int8")
    codes = {"fp16": "*fp16", "int8": "*i8"}.get(form, "*u8")
    scales = {"fp16": "*fp16", "int8": "*fp16", "mxfp4": "*i8"}.get(form, "*u8")
    stored = {"codes": codes, "scales": scales}
    sizes = {"width": "i32", "groups": "i32"}
    others: dict[str, str] = {
        "quantised": {"values": "*bf16", **stored, "row_stride": "i32", **sizes},
        "dequantised": {**stored, "values": "*fp32", **sizes},
        "dequantised and normed": {
            **stored, "centroids": "*fp32", "norm_weight": "*bf16", "normed": "*bf16",
            "centroid_stride": "i32", **sizes, "eps": "fp32",
        },
    }[operation]  # fmt: skip
    return Variant(
        name=f"residual_quant, {form} {operation}",
        kernel=kernel,
        signature={**others, **dict.fromkeys(fixed, "constexpr")},
        constants=fixed,
        registers=64,
        warps=_warps(fixed["BLOCK"]),
        stages=STAGES,
        aligned=("row_stride", "centroid_stride", "width"),
    )


VARIANTS: tuple[Variant, ...] = (
    *(_variant("quantised", quantise_kernel, form) for form in FORMATS),
    *(_variant("dequantised", dequantise_kernel, form) for form in ("nvfp4", "int8", "int2")),
    *(
        _variant("dequantised and normed", dequantise_normed_kernel, form)
        for form in ("nvfp4", "mxfp4", "int8", "fp8")
    ),
)
