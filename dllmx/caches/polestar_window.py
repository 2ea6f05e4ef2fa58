"""Where Polestar's local window lies around a block, for the cache policy ``polestar``."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dllmx.engine.interface import View


@dataclass(frozen=True, slots=True)
class Segment:
    """``positions`` [n] that are clustered together into ``clusters`` groups, at most n."""

    positions: Tensor
    clusters: int


def segments_of(before: Tensor, behind: Tensor, clusters: int, split: bool) -> list[Segment]:
    """How the window's two sides share the clusters: as one set, or each side its own part.

    Split as in the released code: the prefix gets its share of the positions, rounded down, at
    least one and never all, so that the last block uses one cluster less.
    """
    if not split:
        shares = [(torch.cat([before, behind]), clusters)]
    else:
        total = before.numel() + behind.numel()
        share = min(clusters - 1, max(1, clusters * before.numel() // max(total, 1)))
        share = share if before.numel() else 0
        shares = [(before, share), (behind, clusters - share)]
    return [Segment(side, min(share, side.numel())) for side, share in shares if side.numel()]


def window_of(view: View, prefix_blocks: int, suffix_blocks: int) -> tuple[Tensor, Tensor]:
    """The window's positions before and behind the block, so many blocks each at most.

    Rows that are computed with the block are not in the window; in shifted models that holds for
    the row before the block, which predicts the block's first token.
    """
    block = view.block
    size = block.hi - block.lo
    before = torch.arange(max(0, block.lo - prefix_blocks * size), block.lo)
    before = before[~torch.isin(before, torch.cat([block_rows(view), row_before(view)]))]
    behind = torch.arange(block.hi, min(view.length, block.hi + suffix_blocks * size))
    return before, behind


def block_rows(view: View) -> Tensor:
    """The block, masks before it that may be committed too, and the rows that predict them."""
    masks = view.eligible
    rows = [torch.arange(view.block.lo, view.block.hi), masks]
    if view.shifted:
        rows.append((masks - 1).clamp(min=0))
    return torch.cat(rows).unique()


def row_before(view: View) -> Tensor:
    """In shifted models the row that predicts the block's first token, else none."""
    count = 1 if view.shifted and view.block.lo > 0 else 0
    return torch.arange(view.block.lo - count, view.block.lo)
