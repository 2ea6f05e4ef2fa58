"""How Polestar keeps the layer inputs of its window (arXiv 2607.14107, appendix C.3)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dllmx.kernels.choice import TORCH, Kernels
from dllmx.kernels.residual_quant import BITS, FORMATS, GROUP, Quantised

RESIDUAL_FORMATS = ("none", *FORMATS, "nvfp4-direct")
BYTES = {"fp16": 2, "fp8": 1, "int8": 1}


@dataclass(frozen=True, slots=True)
class HeldStates:
    """``kept`` stands for states [n, D]: as they are, or encoded; ``residual``: what is encoded is
    their distance from the centroids.
    """

    kept: Tensor | Quantised
    residual: bool
    kernels: Kernels

    @property
    def nbytes(self) -> int:
        """Size in bytes, without centroids."""
        return self.kept.nbytes

    def states(self, centroids: Tensor) -> Tensor:
        """The states [n, D] in float32; ``centroids`` [n, D]: each state's own, as when held."""
        if isinstance(self.kept, Tensor):
            values = self.kept.float()
        else:
            values = self.kernels.dequantise(self.kept)
        return values + centroids if self.residual else values


def hold(states: Tensor, centroids: Tensor, form: str, kernels: Kernels = TORCH) -> HeldStates:
    """Keep ``states`` [n, D] in one of RESIDUAL_FORMATS; ``centroids`` [n, D]: each state's own."""
    if form == "none":
        return HeldStates(states, False, kernels)
    if form == "nvfp4-direct":
        return HeldStates(kernels.quantise(states, "nvfp4"), False, kernels)
    return HeldStates(kernels.quantise(states.float() - centroids, form), True, kernels)


def held_bytes(form: str, rows: int, width: int, value_bytes: int) -> int:
    """Bytes that ``rows`` states take in one of RESIDUAL_FORMATS, without centroids."""
    if form == "none":
        return rows * width * value_bytes
    form = form.removesuffix("-direct")
    if form not in GROUP:
        return rows * (width * BYTES[form] + (2 if form == "int8" else 0))
    groups = -(-width // GROUP[form])
    return rows * groups * (GROUP[form] * BITS[form] // 8 + 1)
