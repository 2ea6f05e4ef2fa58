"""What one sequence asks of a forward, and what comes back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from dllmx.engine.interface import Plan, Prediction, View
from dllmx.errors import RunError


@dataclass(frozen=True, slots=True)
class Work:
    """What one sequence asks of the next forward, in its own positions.

    ``rows`` [R] sorted, None for all of its ``length`` positions; ``wanted`` [N] positions to
    predict, ``source`` [N] the rows whose logits predict them (the same, or one before in
    shifted models).
    """

    member: int
    length: int
    plan: Plan
    rows: Tensor | None
    wanted: Tensor
    source: Tensor

    @property
    def row_count(self) -> int:
        """R, the rows that the forward computes for this sequence."""
        return self.length if self.rows is None else self.rows.numel()

    def fresh_only(self, computed: Tensor) -> Work:
        """The same work, wanting only what the sorted rows ``computed`` can predict."""
        fresh = torch.isin(self.source, computed)
        wanted, source = self.wanted[fresh], self.source[fresh]
        return Work(self.member, self.length, self.plan, self.rows, wanted, source)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came back for one ``Work``: its prediction, and rows x layers that it cost."""

    work: Work
    prediction: Prediction
    row_layers: int


def work_of(member: int, view: View, plan: Plan, read: str, shifted: bool) -> Work:
    """The work that ``plan`` means; ``read`` is ``Needs.read`` of the commit rule.

    In shifted models the rows that predict the wanted positions among the planned ones join.
    Raises RunError for a plan without rows.
    """
    if read == "partial_masks":
        read = "block_masks" if plan.rows is None else "masks"
    wanted = _wanted(view, read)
    source = (wanted - 1).clamp(min=0) if shifted else wanted
    if plan.rows is None:
        return Work(member, view.length, plan, None, wanted, source)
    if plan.rows.numel() == 0:
        raise RunError("The cache policy planned a forward without rows; plan at least one.")
    rows = plan.rows.unique()
    if shifted:
        rows = _with_sources(rows, wanted, source)
    return Work(member, view.length, plan, rows, wanted, source)


def grouped(works: Iterable[Work]) -> list[list[Work]]:
    """Works that can share a forward: all full ones, others by row count; absent rows alone."""
    groups: dict[object, list[Work]] = {}
    for work in works:
        key: object = None if work.rows is None else work.row_count
        if work.plan.visible is not None:
            key = ("alone", work.member)
        groups.setdefault(key, []).append(work)
    return list(groups.values())


def _wanted(view: View, read: str) -> Tensor:
    block = view.block
    if read == "block":
        return torch.arange(block.lo, block.hi)
    if read == "response":
        return torch.arange(view.prompt_length, block.hi)
    if read == "masks":
        return view.is_mask.nonzero()[:, 0]
    return view.eligible


def _with_sources(rows: Tensor, wanted: Tensor, source: Tensor) -> Tensor:
    """``rows`` and, for each wanted position among them, the row that predicts it."""
    needed = source[torch.isin(wanted, rows)]
    missing = needed[~torch.isin(needed, rows)]
    return torch.cat([rows, missing]).unique() if missing.numel() else rows
