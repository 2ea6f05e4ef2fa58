"""How Polestar keeps the layer inputs of its window (arXiv 2607.14107, appendix C.3)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dllmx.kernels.residual_quant import FORMATS, Quantised, dequantise_torch, quantise_torch

RESIDUAL_FORMATS = ("none", *FORMATS, "nvfp4-direct")


@dataclass(frozen=True, slots=True)
class HeldStates:
    """``kept`` stands for states [n, D]: as they are, or encoded; ``residual``: what is encoded is
    their distance from the centroids.
    """

    kept: Tensor | Quantised
    residual: bool

    @property
    def nbytes(self) -> int:
        """Size in bytes, without centroids."""
        return self.kept.nbytes

    def states(self, centroids: Tensor) -> Tensor:
        """The states [n, D] in float32; ``centroids`` [n, D]: each state's own, as when held."""
        values = self.kept.float() if isinstance(self.kept, Tensor) else dequantise_torch(self.kept)
        return values + centroids if self.residual else values


def hold(states: Tensor, centroids: Tensor, form: str) -> HeldStates:
    """Keep ``states`` [n, D] in one of RESIDUAL_FORMATS; ``centroids`` [n, D]: each state's own."""
    if form == "none":
        return HeldStates(states, residual=False)
    if form == "nvfp4-direct":
        return HeldStates(quantise_torch(states, "nvfp4"), residual=False)
    return HeldStates(quantise_torch(states.float() - centroids, form), residual=True)
