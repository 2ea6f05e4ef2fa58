"""The mutable state of one sequence. Only the engine and the decode loop write it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dllmx.engine.counters import Counters
from dllmx.engine.interface import NOTHING, Block, Commit, Scores
from dllmx.engine.trace import StepRecord
from dllmx.errors import RunError
from dllmx.kernels.choice import TORCH, Kernels


@dataclass(slots=True)
class SequenceState:
    """One sequence being decoded; ``tokens`` [T] is a window into the host canvas."""

    id: str
    tokens: Tensor
    prompt_length: int
    mask_id: int
    eos_id: int
    generator: torch.Generator
    shifted: bool = False
    read_signals: frozenset[str] = frozenset()
    counters: Counters = field(default_factory=Counters)
    records: list[StepRecord] = field(default_factory=list)
    block: Block | None = None
    masks_at_entry: int = 0
    step: int = 0
    block_step: int = 0
    committed_last: Tensor = NOTHING
    committed_entropy: Tensor = NOTHING
    remasked_last: Tensor = NOTHING
    attention: Mapping[int, Tensor | Scores] = field(default_factory=dict)
    signals: dict[str, Any] = field(default_factory=dict)
    computed_at: Tensor = NOTHING
    committed_at: Tensor = NOTHING
    removed_token: Tensor = NOTHING
    fewest_masks: int = 0
    stalled: int = 0
    kernels: Kernels = TORCH

    def __post_init__(self) -> None:
        length = self.tokens.shape[0]
        self.computed_at = torch.full((length,), -1)
        self.committed_at = torch.full((length,), -1)
        self.removed_token = torch.full((length,), -1)
        self.fewest_masks = length + 1

    def enter(self, block: Block) -> None:
        """Make ``block`` the current one."""
        self.block = block
        self.block_step = 0
        self.masks_at_entry = self.eligible().numel()

    def eligible(self) -> Tensor:
        """Positions of the masks that the current block may commit now, sorted."""
        if self.block is None:
            return NOTHING
        first = self.block.eligible_from
        masks = (self.tokens[first : self.block.hi] == self.mask_id).nonzero()[:, 0] + first
        return masks[: self.block.window]

    def must_force(self, commit: Commit) -> bool:
        """Whether the engine has to commit for the rule so that the decode goes on.

        True if the rule neither commits nor re-masks without meaning to, or if the number of
        masks has not reached a new low for as many steps as the response has positions.
        """
        masks = int((self.tokens == self.mask_id).sum())
        self.stalled = 0 if masks < self.fewest_masks else self.stalled + 1
        self.fewest_masks = min(masks, self.fewest_masks)
        if self.stalled > self.tokens.shape[0] - self.prompt_length:
            return True
        moves = commit.positions.numel() or commit.remask.numel()
        return not (moves or commit.idle or commit.stop)

    def apply(self, commit: Commit, replaces: bool) -> None:
        """Write tokens, then put masks back; count re-masks and flip-flops.

        Raises RunError if the rule writes where it may not.
        """
        self._check(commit, replaces)
        positions, remask = commit.positions, commit.remask
        same = self.removed_token[positions] == commit.tokens
        self.counters.flip_flops += int(same.sum())
        self.removed_token[positions] = -1
        self.tokens[positions] = commit.tokens
        self.committed_at[positions] = self.step
        self.removed_token[remask] = self.tokens[remask]
        self.tokens[remask] = self.mask_id
        self.committed_at[remask] = -1
        self.counters.remasks += remask.numel()
        self.committed_last = positions.sort().values
        self.remasked_last = remask

    def fill_after_end(self, mode: str) -> list[int]:
        """Positions set to end-of-text because the response has ended, by ``sampler.eos``.

        "fill": every mask behind the first end-of-text, at once; "stop": when the block is done;
        "none": never.
        """
        if mode == "none" or (mode == "stop" and self.eligible().numel()):
            return []
        ends = (self.tokens[self.prompt_length :] == self.eos_id).nonzero()
        if not ends.numel():
            return []
        first = self.prompt_length + int(ends[0])
        later = first + (self.tokens[first:] == self.mask_id).nonzero()[:, 0]
        self.tokens[later] = self.eos_id
        filled: list[int] = later.tolist()
        return filled

    def _check(self, commit: Commit, replaces: bool) -> None:
        if commit.positions.numel() and not replaces:
            taken = self.tokens[commit.positions] != self.mask_id
            if bool(taken.any()):
                where = commit.positions[taken].tolist()
                raise RunError(f"The commit rule wrote over committed tokens at {where}.")
        if commit.remask.numel() and bool((commit.remask < self.prompt_length).any()):
            raise RunError("The commit rule re-masked prompt tokens; only the response may be.")
