"""Views and predictions made by hand, for tests of commit rules and caches."""

from __future__ import annotations

import torch

from dllmx.engine.interface import Block, Prediction, View
from dllmx.engine.sequence import SequenceState

MASK, EOS = 59, 58


def view_of(
    tokens: list[int], prompt_length: int, block: Block, block_step: int = 0, seed: int = 0
) -> View:
    state = SequenceState(
        id="x",
        tokens=torch.tensor(tokens),
        prompt_length=prompt_length,
        mask_id=MASK,
        eos_id=EOS,
        generator=torch.Generator().manual_seed(seed),
    )
    state.enter(block)
    state.block_step = block_step
    return View(state)


def masked_view(count: int, steps: int = 1, block_step: int = 0, seed: int = 0) -> View:
    """A prompt of two tokens and one block of ``count`` masks."""
    block = Block(0, 2, 2 + count, 2, steps)
    return view_of([1, 2] + [MASK] * count, 2, block, block_step, seed)


def prediction_of(confidence: list[float], entropy: list[float] | None = None) -> Prediction:
    """Predictions at positions 2, 3, ... with tokens 10, 11, ..."""
    count = len(confidence)
    values = torch.tensor(confidence, dtype=torch.float64)
    return Prediction(
        positions=torch.arange(2, 2 + count),
        token=torch.arange(10, 10 + count),
        confidence=values,
        eligible=torch.ones(count, dtype=torch.bool),
        entropy=None if entropy is None else torch.tensor(entropy, dtype=torch.float64),
        margin=values / 2,
    )
