"""Elements and scales of the block-scaled formats inside kernels; see ``residual_quant``.

E4M3 and E2M1 are reckoned on the bits of float32, because an A100 cannot convert E4M3 and Triton's
interpreter rounds it wrongly; divisions are ``div_rn``, because Triton's ``/`` may be an ulp off.
"""

from __future__ import annotations

from dllmx.kernels.language import jit, tl


@jit
def to_e4m3(x):  # type: ignore[no-untyped-def]
    """Codes of float32 ``x`` in E4M3, to nearest, ties to even; 448 for all that is larger."""
    magnitude = tl.minimum(tl.abs(x), 448.0)
    bits = magnitude.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    # Added to 2**14, whose last place is the smallest E4M3 number, a subnormal is rounded to it.
    subnormal = (magnitude + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    code = tl.where(magnitude < 0.015625, subnormal, normal)
    code = tl.where(x != x, 0x7F, code)
    return code | ((x.to(tl.int32, bitcast=True) >> 24) & 0x80)


@jit
def from_e4m3(code):  # type: ignore[no-untyped-def]
    """Float32 of E4M3 codes held as int32."""
    magnitude = code & 0x7F
    subnormal = (magnitude.to(tl.float32) * 0.001953125).to(tl.int32, bitcast=True)
    bits = tl.where(magnitude < 8, subnormal, (magnitude << 20) + (120 << 23))
    bits = tl.where(magnitude == 0x7F, 0x7FC00000, bits)
    return (bits | ((code & 0x80) << 24)).to(tl.float32, bitcast=True)


@jit
def to_e2m1(steps):  # type: ignore[no-untyped-def]
    """Codes of the nearest E2M1 values, ties to even codes; 6 for all that is larger."""
    magnitude = tl.abs(steps)
    code = (magnitude > 0.25).to(tl.int32) + (magnitude >= 0.75).to(tl.int32)
    code += (magnitude > 1.25).to(tl.int32) + (magnitude >= 1.75).to(tl.int32)
    code += (magnitude > 2.5).to(tl.int32) + (magnitude >= 3.5).to(tl.int32)
    code += (magnitude > 5.0).to(tl.int32)
    return code + tl.where((steps < 0) & (code > 0), 8, 0)


@jit
def from_e2m1(code):  # type: ignore[no-untyped-def]
    """Float32 of E2M1 codes held as int32."""
    magnitude = code & 7
    normal = ((magnitude << 22) + (126 << 23)).to(tl.float32, bitcast=True)
    value = tl.where(magnitude < 2, magnitude.to(tl.float32) * 0.5, normal)
    return tl.where(code >= 8, -value, value)


@jit
def power_of_two(exponent):  # type: ignore[no-untyped-def]
    """2**exponent in float32, exactly, for int32 exponents from -127 (subnormal) to 127."""
    bits = tl.where(exponent < -126, 0x00400000, (exponent + 127) << 23)
    return bits.to(tl.float32, bitcast=True)


@jit
def to_integer(x):  # type: ignore[no-untyped-def]
    """The nearest int32, ties to even, of float32 ``x`` within +-2**21."""
    # Added to 1.5 * 2**23, whose last place is 1, ``x`` is rounded and stands in the lowest bits.
    return (x + 12582912.0).to(tl.int32, bitcast=True) - 0x4B400000


@jit
def group_scales(largest, FORM: tl.constexpr):  # type: ignore[no-untyped-def]
    """Code (int32) of the scale of groups whose largest magnitude is ``largest``, and the scale."""
    if FORM == "mxfp4":
        code = tl.maximum((largest.to(tl.int32, bitcast=True) >> 23) - 129, -127)
        scale = power_of_two(code)
    else:
        largest = tl.div_rn(largest, 6.0) if FORM == "nvfp4" else largest * 0.5
        code = to_e4m3(tl.maximum(largest, 0.001953125))
        scale = from_e4m3(code)
    return code, scale
