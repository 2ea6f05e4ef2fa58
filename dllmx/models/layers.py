"""A transformer layer as pure functions of tensors; both model families are made of these.

LLaDA and Dream share one shape: pre-norm RMSNorm, rotary attention without causality, SwiGLU.
They differ in biases, grouped heads, the precision of the rotation and the shift of the logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dllmx.kernels.projection import rms_norm as rms_norm
from dllmx.kernels.projection import rotated_torch


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Weights of one layer. Query, key and value projections are one matrix, gate and up another.

    With D the width, H and G the numbers of query and key/value heads, h the head size and M the
    width of the feed-forward part: ``attn_norm`` [D], ``qkv`` [(H+2G)h, D], ``qkv_bias``
    [(H+2G)h] or None, ``attn_out`` [D, Hh], ``mlp_norm`` [D], ``gate_up`` [2M, D],
    ``mlp_down`` [D, M].
    """

    attn_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    attn_out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    mlp_down: Tensor


class Rotation(NamedTuple):
    """Cosine and sine of the rotary angles at chosen positions, each [..., R, h]."""

    cos: Tensor
    sin: Tensor


def rotation_table(length: int, head_dim: int, theta: float, device: torch.device) -> Rotation:
    """Cosines and sines [length, h] in float32 for positions 0..length-1 (half-split layout)."""
    frequency = theta ** (-torch.arange(0, head_dim, 2, device=device).float() / head_dim)
    angle = torch.arange(length, device=device).float()[:, None] * frequency  # [length, h/2]
    angle = torch.cat([angle, angle], dim=-1)
    return Rotation(angle.cos(), angle.sin())


def rotate(heads: Tensor, rotation: Rotation) -> Tensor:
    """Rotate ``heads`` [B, H, R, h] by ``rotation`` [B or 1, R, h], in the rotation's dtype.

    A float32 table gives LLaDA's full-precision rotation, a table cast to the activations' dtype
    gives Dream's. The result has the dtype of ``heads``.
    """
    return rotated_torch(heads, rotation.cos.unsqueeze(1), rotation.sin.unsqueeze(1))


def project_qkv(
    normed: Tensor, layer: LayerWeights, heads: int, kv_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [B, H, R, h], keys and values [B, G, R, h], not rotated, of ``normed`` [B, R, D]."""
    batch, rows, _ = normed.shape
    packed = F.linear(normed, layer.qkv, layer.qkv_bias)
    packed = packed.view(batch, rows, heads + 2 * kv_heads, -1).transpose(1, 2)
    q, k, v = packed.split([heads, kv_heads, kv_heads], dim=1)
    return q, k, v


def attend(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None) -> Tensor:
    """Bidirectional attention of rows ``q`` [B, H, R, h] over ``k``, ``v`` [B, G, N, h].

    ``visible`` [B, N] or [B, R, N] is True where a key may be seen; None means all of them.
    Returns [B, R, H*h].
    """
    mask = None
    if visible is not None:
        mask = visible[:, None, None, :] if visible.dim() == 2 else visible[:, None]
    grouped = q.shape[1] != k.shape[1]
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=grouped)
    return mixed.transpose(1, 2).flatten(2)


def feed_forward(normed: Tensor, layer: LayerWeights) -> Tensor:
    """SwiGLU feed-forward of ``normed`` [B, R, D]."""
    gate, up = F.linear(normed, layer.gate_up).chunk(2, dim=-1)
    return F.linear(F.silu(gate) * up, layer.mlp_down)
