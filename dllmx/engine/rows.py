"""Sets of rows and slots, with their contiguous spans recognised on the host."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class RowSet:
    """Rows of a forward for b slots: canvas columns ``index`` [b, R] on the device.

    ``span`` [lo, hi): set when all slots compute this same contiguous range, which lets the
    engine use slices instead of gathers.
    """

    index: Tensor
    span: tuple[int, int] | None

    @property
    def count(self) -> int:
        """R, the rows of each slot."""
        return self.index.shape[1]

    @staticmethod
    def of_span(lo: int, hi: int, slots: int, device: torch.device) -> RowSet:
        """All slots compute [lo, hi)."""
        index = torch.arange(lo, hi, device=device).expand(slots, -1)
        return RowSet(index, (lo, hi))

    @staticmethod
    def of_columns(columns: list[Tensor], device: torch.device) -> RowSet:
        """One sorted host tensor [R] of canvas columns a slot."""
        first = columns[0]
        lo, hi = int(first[0]), int(first[-1]) + 1
        same = all(column is first or torch.equal(column, first) for column in columns)
        if same and hi - lo == first.shape[0]:
            return RowSet.of_span(lo, hi, len(columns), device)
        return RowSet(torch.stack(columns).to(device, non_blocking=True), None)


@dataclass(frozen=True)
class SlotSet:
    """The slots that take part in a forward, in ascending order."""

    indices: tuple[int, ...]

    @cached_property
    def span(self) -> tuple[int, int] | None:
        """[first, last] as a half-open range when the slots are adjacent, else None."""
        first, last = self.indices[0], self.indices[-1]
        return (first, last + 1) if last + 1 - first == len(self.indices) else None
