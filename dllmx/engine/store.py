"""Preallocated per-layer tensors of every slot: what a forward over some rows reads of the others.

A slot is one token sequence on the device; with guidance each sequence has two.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dllmx.engine.rows import RowSet, SlotSet
from dllmx.models.model import ModelShape

HEAD_TENSORS = ("k", "v", "k_unrotated")


def stored_size(name: str, shape: ModelShape, slots: int, width: int) -> torch.Size:
    """Size of the stored tensor ``name`` of ``slots`` canvases of ``width`` columns; see Store."""
    if name in HEAD_TENSORS:
        return torch.Size((shape.layers, slots, shape.kv_heads, width, shape.head_dim))
    last = shape.heads * shape.head_dim if name == "q" else shape.width
    return torch.Size((shape.layers, slots, width, last))


class Store:
    """Keys (rotated) and values [L, S, G, W, h], and further named tensors on request.

    ``k_unrotated``, the keys before rotation, is [L, S, G, W, h]; ``x``, ``attn_out``, ``mlp_out``
    are [L, S, W, D] and ``q`` [L, S, W, H*h]. Every entry is NaN until it is written, so that a
    row that is read too early shows in the logits at once.
    """

    def __init__(
        self,
        shape: ModelShape,
        names: frozenset[str],
        slots: int,
        width: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.tensors: dict[str, Tensor] = {}
        for name in sorted(names):
            size = stored_size(name, shape, slots, width)
            self.tensors[name] = torch.full(size, torch.nan, dtype=dtype, device=device)

    @property
    def bytes(self) -> int:
        """Size of all stored tensors in bytes."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def clear_padding(self, slot: int, padding: int) -> None:
        """Make the first ``padding`` positions finite: they are invisible, but multiplied by 0."""
        for tensor in self.tensors.values():
            tensor[:, slot].narrow(-2, 0, padding).zero_()

    def write(self, name: str, layer: int, slots: SlotSet, rows: RowSet, values: Tensor) -> None:
        """Overwrite ``rows`` of ``slots``; ``values`` [b, G, R, h] or [b, R, D]."""
        target = self.tensors[name][layer]
        dim = target.dim() - 2
        if rows.span is not None and slots.span is not None:
            window = target[slots.span[0] : slots.span[1]]
            window.narrow(dim, rows.span[0], rows.span[1] - rows.span[0]).copy_(values)
            return
        for i, slot in enumerate(slots.indices):
            target[slot].index_copy_(dim - 1, rows.index[i], values[i])

    def read(self, name: str, layer: int, slots: SlotSet) -> Tensor:
        """The stored tensor of ``slots``: a view where they are adjacent, else a copy."""
        tensor = self.tensors[name][layer]
        if slots.span is not None:
            return tensor[slots.span[0] : slots.span[1]]
        return tensor[list(slots.indices)]

    def layer_view(self, layer: int, slot: int) -> dict[str, Tensor]:
        """Name -> stored tensor of one layer and slot, k, v [G, W, h], others [W, D]; no copy."""
        return {name: tensor[layer, slot] for name, tensor in self.tensors.items()}
