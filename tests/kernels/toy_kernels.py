"""Kernels that are compiled to see that the check of their budgets can fail."""

from __future__ import annotations

from dllmx.kernels.compiled import Variant
from dllmx.kernels.language import jit, tl


@jit
def add_kernel(x, y, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    total = tl.load(x + at, mask=inside).to(tl.float32) + tl.load(y + at, mask=inside)
    tl.store(out + at, total, mask=inside)


@jit
def greedy_kernel(x, out, stride, BLOCK: tl.constexpr):
    """Holds a whole square of numbers, and its transpose, in the registers of few threads."""
    at = tl.arange(0, BLOCK)
    square = tl.load(x + at[:, None] * stride + at[None, :]).to(tl.float32)
    total = tl.sum(tl.trans(square) * square, axis=0)[None, :]
    ratio = square / tl.max(square, axis=1)[:, None]
    tl.store(out + at[:, None] * stride + at[None, :], tl.exp(square) * total + ratio)


def _added(name: str, registers: int, **given: str) -> Variant:
    return Variant(
        name=name,
        kernel=add_kernel,
        signature={
            "BLOCK": "constexpr", "x": "*bf16", "y": "*bf16", "out": "*fp32", "count": "i32",
            **given,
        },
        constants={"BLOCK": 1024},
        registers=registers,
        aligned=("count",),
    )  # fmt: skip


def _greedy(name: str, block: int, warps: int) -> Variant:
    return Variant(
        name=name,
        kernel=greedy_kernel,
        signature={"x": "*bf16", "out": "*fp32", "stride": "i32", "BLOCK": "constexpr"},
        constants={"BLOCK": block},
        registers=255,
        warps=warps,
    )


VARIANTS: tuple[Variant, ...] = (
    _added("fits", 64),
    _added("too many registers", 8),
    _added("wrong signature", 64, forgotten="i32"),
    _added("does not compile", 64, count="*i32"),
    _added("crashes the compiler", 64, y="**bf16"),
    _greedy("spills", 64, 1),
    _greedy("too much shared memory", 256, 32),
)
