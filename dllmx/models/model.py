"""A masked diffusion language model: its shape, its weights and the plain full forward."""

from __future__ import annotations

from dataclasses import dataclass

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

    def forward_logits(
        self, ids: Tensor, visible: Tensor | None = None, closed: Tensor | None = None
    ) -> Tensor:
        """Logits [B, T, V], aligned with positions, of a full forward over ``ids`` [B, T].

        ``visible`` [B, T] is False at left padding; positions count from the first visible token.
        ``closed`` [B, T] marks positions that only each other may see, as if every other row had
        been computed before they were known. For shifted models row p-1 gives the logits of p,
        and position 0 reuses row 0. Differentiable; nothing is cached.
        """
        x = F.embedding(ids, self.weights.embed)
        rotation = self._rotation_at(ids, visible)
        seen = visible
        if closed is not None:
            open_keys = ~closed if visible is None else visible & ~closed
            seen = open_keys[:, None] | (closed[:, :, None] & closed[:, None])  # [B, T, T]
        for layer in self.weights.layers:
            x = self._full_layer(x, layer, rotation, seen)
        if self.shape.shifted:
            x = torch.cat([x[:, :1], x[:, :-1]], dim=1)
        return self.head_logits(x)

    def _rotation_at(self, ids: Tensor, visible: Tensor | None) -> Rotation:
        table = self.rotation_table(ids.shape[1])
        if visible is None:
            return Rotation(table.cos[None], table.sin[None])
        positions = (visible.long().cumsum(-1) - 1).clamp(min=0)  # [B, T]
        return Rotation(table.cos[positions], table.sin[positions])

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
