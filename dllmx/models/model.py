"""A masked diffusion language model: its shape, its weights and the plain full forward."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor

from dllmx.models import layers
from dllmx.models.layers import LayerWeights, Rotation


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Everything about a model that is not a weight; read from a checkpoint's config.json.

    ``shifted``: raw row p of the network predicts the token at position p+1 (Dream), not at p.
    ``rope_in_float32``: queries and keys are rotated in float32 (LLaDA), else in their own dtype.
    """

    family: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    vocab: int
    rope_theta: float
    norm_eps: float
    qkv_bias: bool
    tied: bool
    rope_in_float32: bool
    shifted: bool
    mask_id: int
    eos_id: int
    pad_id: int
    eot_id: int | None = None
    bos_id: int | None = None


@dataclass(frozen=True, slots=True)
class Weights:
    """``embed`` [V, D], one ``LayerWeights`` a layer, ``final_norm`` [D], ``head`` [V, D].

    With tied embeddings ``head`` is ``embed`` itself.
    """

    embed: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    head: Tensor

    def tensors(self) -> list[Tensor]:
        """All tensors, a tied head only once."""
        of_layers = [getattr(layer, entry.name) for layer in self.layers for entry in fields(layer)]
        outer = [self.embed, self.final_norm, *([] if self.head is self.embed else [self.head])]
        return [*outer, *(tensor for tensor in of_layers if tensor is not None)]


@dataclass(frozen=True, slots=True)
class Model:
    """A model ready to run. Whoever uses it never sees the shift of the logits."""

    shape: ModelShape
    weights: Weights

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.weights.embed.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of weights and activations."""
        return self.weights.embed.dtype

    def rotation_table(self, length: int) -> Rotation:
        """Rotary table [length, h] in the dtype in which this family rotates."""
        shape = self.shape
        table = layers.rotation_table(length, shape.head_dim, shape.rope_theta, self.device)
        if shape.rope_in_float32:
            return table
        return Rotation(table.cos.to(self.dtype), table.sin.to(self.dtype))

    def head_logits(self, hidden: Tensor) -> Tensor:
        """Raw logits [..., V] of last-layer rows ``hidden`` [..., D], before any shift."""
        normed = layers.rms_norm(hidden, self.weights.final_norm, self.shape.norm_eps)
        return F.linear(normed, self.weights.head)

    def forward_logits(self, ids: Tensor, visible: Tensor | None = None) -> Tensor:
        """Logits [B, T, V], aligned with positions, of a full forward over ``ids`` [B, T].

        ``visible`` [B, T] is False at left padding; positions count from the first visible token.
        For shifted models row p-1 gives the logits of p, and position 0 reuses row 0.
        Differentiable; nothing is cached.
        """
        positions = _positions(ids, visible)
        x = self._hidden(ids, positions, visible)
        if self.shape.shifted:
            x = torch.cat([x[:, :1], x[:, :-1]], dim=1)
        return self.head_logits(x)

    def forward_block_logits(
        self, stored_ids: Tensor, ids: Tensor, block: Tensor, visible: Tensor
    ) -> Tensor:
        """Logits [B, T, V] of ``ids`` in the block, against rows computed from ``stored_ids``.

        What a dual cache computes, in one differentiable forward: the rows of ``block`` [B, T]
        (bool) see each other fresh, and every other row as it was for ``stored_ids``. Rows outside
        the block give the logits of ``stored_ids``. In shifted models the row before the block is
        fresh too. ``visible`` [B, T] is False at left padding.
        """
        fresh = block
        if self.shape.shifted:
            before = torch.cat([block[:, 1:], torch.zeros_like(block[:, :1])], dim=1)
            fresh = block | (before & visible)
        rows = int(fresh.sum(1).max())
        where = fresh.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :rows]
        copy = fresh.gather(1, where)  # [B, C]: a fresh row, or one that only fills up
        positions = _positions(ids, visible)
        keys_of_stored = torch.cat([visible, torch.zeros_like(copy)], dim=1)
        keys_of_fresh = torch.cat([visible & ~fresh, copy], dim=1)
        rows_are_fresh = torch.cat([torch.zeros_like(fresh), torch.ones_like(copy)], dim=1)
        x = self._hidden(
            torch.cat([stored_ids, ids.gather(1, where)], dim=1),
            torch.cat([positions, positions.gather(1, where)], dim=1),
            torch.where(rows_are_fresh[..., None], keys_of_fresh[:, None], keys_of_stored[:, None]),
        )
        stored, new = x.split([ids.shape[1], rows], dim=1)
        late = torch.where(copy[..., None], new, stored.gather(1, _wide(where, stored)))
        x = stored.scatter(1, _wide(where, stored), late)
        if self.shape.shifted:
            x = torch.cat([x[:, :1], x[:, :-1]], dim=1)
        return self.head_logits(x)

    def _hidden(self, ids: Tensor, positions: Tensor, seen: Tensor | None) -> Tensor:
        """Last-layer rows [B, T, D]; ``seen`` [B, T] or [B, T, T] says which keys may be seen."""
        table = self.rotation_table(int(positions.max()) + 1)
        rotation = Rotation(table.cos[positions], table.sin[positions])
        x = F.embedding(ids, self.weights.embed)
        for layer in self.weights.layers:
            x = self._full_layer(x, layer, rotation, seen)
        return x

    def _full_layer(
        self, x: Tensor, layer: LayerWeights, rotation: Rotation, visible: Tensor | None
    ) -> Tensor:
        shape = self.shape
        normed = layers.rms_norm(x, layer.attn_norm, shape.norm_eps)
        q, k, v = layers.project_qkv(normed, layer, shape.heads, shape.kv_heads)
        q, k = layers.rotate(q, rotation), layers.rotate(k, rotation)
        x = x + F.linear(layers.attend(q, k, v, visible), layer.attn_out)
        normed = layers.rms_norm(x, layer.mlp_norm, shape.norm_eps)
        return x + layers.feed_forward(normed, layer)


def _wide(index: Tensor, rows: Tensor) -> Tensor:
    """``index`` [B, R] repeated over the width of ``rows`` [B, T, D]."""
    return index[..., None].expand(*index.shape, rows.shape[-1])


def _positions(ids: Tensor, visible: Tensor | None) -> Tensor:
    """Positions [B, T], counted from the first visible token."""
    if visible is None:
        return torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)
    return (visible.long().cumsum(-1) - 1).clamp(min=0)
