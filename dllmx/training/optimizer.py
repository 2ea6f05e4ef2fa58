"""The optimizer of the recipe: Muon for the matrices inside the layers, AdamW for the rest.

Muon (Jordan et al., 2024; scaled as in Liu et al., "Muon is scalable for LLM training", 2025)
replaces a matrix's momentum by the nearest orthogonal matrix, so that every direction learns at the
same pace. On these models it needs about half the steps of AdamW.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

BETA1, BETA2, EPSILON = 0.9, 0.98, 1e-8
MOMENTUM = 0.95
ROUNDS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ROOT_MEAN_SQUARE = 0.6
"""Size of a Muon update at rate 1, about that of AdamW, so that both take the same rate."""


class Optimizer:
    """Updates named tensors in place; ``moments`` is all of its state."""

    def __init__(self, matrices: Mapping[str, Sequence[int]], weight_decay: float) -> None:
        """``matrices``: the row counts of the parts of each fused matrix that goes to Muon."""
        self.matrices = matrices
        self.weight_decay = weight_decay
        self.moments: dict[str, Tensor] = {}

    @torch.no_grad()
    def update(self, weights: Mapping[str, Tensor], step: int, rate: float) -> None:
        """One update from the gradients, which are cleared; ``step`` counts from 0."""
        for name, value in weights.items():
            gradient = value.grad
            if gradient is None:
                continue
            if name in self.matrices:
                value.mul_(1 - rate * self.weight_decay)
                value.sub_(self._muon(name, gradient), alpha=rate)
            else:
                value.sub_(self._adam(name, gradient, step), alpha=rate)
            value.grad = None

    def _muon(self, name: str, gradient: Tensor) -> Tensor:
        momentum = self._moment(f"{name}.momentum", gradient)
        momentum.lerp_(gradient, 1 - MOMENTUM)
        ahead = gradient.lerp(momentum, MOMENTUM)
        parts = ahead.split(list(self.matrices[name]))
        return torch.cat(
            [orthogonal(part) * ROOT_MEAN_SQUARE * math.sqrt(max(part.shape)) for part in parts]
        )

    def _adam(self, name: str, gradient: Tensor, step: int) -> Tensor:
        first = self._moment(f"{name}.first", gradient).lerp_(gradient, 1 - BETA1)
        second = self._moment(f"{name}.second", gradient).lerp_(gradient.square(), 1 - BETA2)
        spread = (second / (1 - BETA2 ** (step + 1))).sqrt_().add_(EPSILON)
        return first / (1 - BETA1 ** (step + 1)) / spread

    def _moment(self, name: str, like: Tensor) -> Tensor:
        return self.moments.setdefault(name, torch.zeros_like(like))


def orthogonal(matrix: Tensor) -> Tensor:
    """Close to the orthogonal factor of ``matrix`` [R, C]: singular values pulled to about 1."""
    a, b, c = COEFFICIENTS
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x = wide / (wide.norm() + 1e-7)
    for _ in range(ROUNDS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x if wide is matrix else x.T
