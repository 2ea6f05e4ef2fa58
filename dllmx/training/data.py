"""Training batches. A batch depends on the seed and its step alone, so a resumed run sees the same.

Every canvas is prompt (left-padded), answer, end of turn and end-of-text up to the task's length.
Masking ratios are stratified over the batch. Three quarters of the canvases are masked as a
block-wise decode meets them (clean before a block, partly masked inside, all masks after it), the
others anywhere in the response. Half of all canvases and later more, all of them block-wise, are
seen as a dual cache leaves them: what stands outside the block was computed while the block was
masked. A model that never saw this keeps notes on the block in the prompt's rows, and a cache takes
them away.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dllmx.tasks import split, tiny_code, tiny_lists, tiny_math
from dllmx.training import vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TASKS = {"tiny-math": tiny_math, "tiny-lists": tiny_lists, "tiny-code": tiny_code}
BEGINNING = 2000
"""Steps in which sums and lists are of a wider scope than the one that is judged."""

GEN_LENGTH = 32
LONG_LENGTH = 64
LONG_EVERY = 10
"""One batch in this many has LONG_LENGTH: filling with end-of-text is learned there."""

CACHED = (0.5, 0.7)
"""Share of the canvases that are seen as a dual cache leaves them, before and from CACHED_MORE."""

CACHED_MORE = 4800
"""Step from which more canvases are seen as a dual cache leaves them, the harder view."""

ANYWHERE = 0.25
"""Share of the canvases that are masked anywhere in the response."""

CUT_GRID = 8
BLOCK = 16


def draws_at(step: int) -> dict[str, split.Draw]:
    """What draws the examples of each task at a step.

    Training begins with sums and lists of a wider scope than is judged, which teaches that numbers
    have an order and lists have places, and goes on with those that are judged. Formulas are
    of the wider scope to the end.
    """
    wide = step < BEGINNING
    return {
        "tiny-math": partial(tiny_math.draw, scope=tiny_math.BROAD if wide else tiny_math.SCOPE),
        "tiny-lists": partial(
            tiny_lists.draw, scope=tiny_lists.BROAD if wide else tiny_lists.SCOPE
        ),
        "tiny-code": partial(tiny_code.draw, scope=tiny_code.BROAD),
    }


@dataclass(frozen=True, slots=True)
class Batch:
    """``noisy`` [B, T] is what the model sees, ``clean`` [B, T] what it should say.

    ``visible`` [B, T] is False at left padding, ``masked`` [B, T] True where the loss counts.
    The first C canvases are to be seen as a dual cache leaves them: fresh in ``block`` [C, T], all
    other rows computed from ``stored`` [C, T], where that block is still masked.
    """

    noisy: Tensor
    clean: Tensor
    visible: Tensor
    masked: Tensor
    block: Tensor
    stored: Tensor


@dataclass(frozen=True, slots=True)
class Stream:
    """Draws batches for a family of models."""

    family: str
    tokenizer: Tokenizer
    seed: int
    size: int

    @classmethod
    def of(cls, family: str, seed: int, size: int) -> Stream:
        """A stream of batches of ``size`` canvases."""
        return cls(family, vocabulary.build_tokenizer(family), seed, size)

    def batch(self, step: int, mix: Mapping[str, float]) -> Batch:
        """The batch of ``step``; ``mix`` gives the share of each task."""
        rng = random.Random(f"{self.seed}/{step}")
        numbers = np.random.default_rng([self.seed, step])
        length = LONG_LENGTH if step % LONG_EVERY == LONG_EVERY - 1 else GEN_LENGTH
        names = rng.choices(list(mix), list(mix.values()), k=self.size)
        draws = draws_at(step)
        examples = [split.training_example(draws[name], rng) for name in names]
        prompts = self._encode(
            [vocabulary.render_prompt(self.family, example.prompt) for example in examples]
        )
        answers = self._encode([example.answer for example in examples])
        cached = round(CACHED[step >= CACHED_MORE] * self.size)
        return self._assemble(prompts, answers, length, cached, numbers)

    def _encode(self, texts: list[str]) -> list[list[int]]:
        encodings = self.tokenizer.encode_batch(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def _assemble(
        self,
        prompts: list[list[int]],
        answers: list[list[int]],
        length: int,
        cached: int,
        numbers: np.random.Generator,
    ) -> Batch:
        special, ids = vocabulary.SPECIALS[self.family], vocabulary.token_ids(self.family)
        eos, eot, mask = ids[special.end_of_text], ids[special.end_of_turn], ids[special.mask]
        longest = max(map(len, prompts))
        clean = np.full((len(prompts), longest + length), eos)
        visible = np.ones(clean.shape, bool)
        for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            visible[row, : longest - len(prompt)] = False
            clean[row, longest - len(prompt) : longest] = prompt
            clean[row, longest : longest + len(answer) + 1] = [*answer, eot]
        masked, block = np.zeros(clean.shape, bool), np.zeros(clean.shape, bool)
        masked[:, longest:], block[:, longest:] = draw_masks(len(prompts), length, numbers)
        noisy = np.where(masked, mask, clean)
        block = block[:cached]
        stored = np.where(block, mask, noisy[:cached])
        return Batch(*map(torch.from_numpy, (noisy, clean, visible, masked, block, stored)))


def draw_masks(
    count: int, length: int, numbers: np.random.Generator
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Masked response positions [count, length] and the blocks that they are drawn in.

    Masking ratios are stratified. The blocks are windows of BLOCK, and in the last share ANYWHERE
    of the canvases the whole response.
    """
    ratio = (np.arange(count) + numbers.random(count)) / count
    numbers.shuffle(ratio)
    keys = numbers.random((count, length))
    cut = numbers.integers(0, (length - BLOCK) // CUT_GRID + 1, count) * CUT_GRID
    blockwise = np.arange(count) < round((1 - ANYWHERE) * count)
    start = np.where(blockwise, cut, 0)[:, None]
    stop = np.where(blockwise, cut + BLOCK, length)[:, None]
    position = np.arange(length)[None]
    inside = (position >= start) & (position < stop)
    wanted = np.maximum(1, np.ceil(ratio[:, None] * (stop - start)))
    rank = np.where(inside, keys, 2.0).argsort(1).argsort(1)
    return (inside & (rank < wanted)) | (position >= stop), inside
