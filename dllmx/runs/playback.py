"""A decode played again: the canvas after every step, with the age of every token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Frame:
    """The canvas after ``number`` steps.

    ``tokens``: ids of prompt and response; ``committed_at``: the step at which each was written
    (None for the prompt and for masks); ``step``: the last step, as ``step_to_json`` writes it,
    None before the first.
    """

    tokens: tuple[int, ...]
    committed_at: tuple[int | None, ...]
    prompt_length: int
    mask_id: int
    eos_id: int
    number: int = 0
    step: Mapping[str, Any] | None = None

    @property
    def block(self) -> tuple[int, int] | None:
        """The block [lo, hi) of the last step."""
        return tuple(self.step["block"]) if self.step else None

    @property
    def masks(self) -> int:
        """Masks that are left."""
        return self.tokens.count(self.mask_id)

    def age(self, position: int) -> int | None:
        """Steps since the token at ``position`` was written; 0: by the last step."""
        written = self.committed_at[position]
        return None if written is None else self.number - written

    def after(self, step: Mapping[str, Any]) -> Frame:
        """The next frame: commits and filled positions written, re-masked ones masked again."""
        tokens, ages = list(self.tokens), list(self.committed_at)
        number = self.number + 1
        filled = ((position, self.eos_id) for position in step["filled"])
        for position, token in [*step["commit"], *filled]:
            tokens[position], ages[position] = token, number
        for position in step["remask"]:
            tokens[position], ages[position] = self.mask_id, None
        return replace(
            self, tokens=tuple(tokens), committed_at=tuple(ages), number=number, step=step
        )


def first_frame(prompt_ids: Sequence[int], gen_length: int, mask_id: int, eos_id: int) -> Frame:
    """The canvas before the first step: the prompt, and ``gen_length`` masks."""
    tokens = (*prompt_ids, *[mask_id] * gen_length)
    return Frame(tokens, (None,) * len(tokens), len(prompt_ids), mask_id, eos_id)
