"""Shapes of the bundled tiny models."""

from __future__ import annotations

from dllmx.errors import ConfigError
from dllmx.models.model import ModelShape
from dllmx.training import vocabulary

WIDTH, LAYERS, HEADS, MLP_WIDTH = 128, 4, 4, 384


def tiny_shape(name: str) -> ModelShape:
    """Shape of ``tiny-llada`` or ``tiny-dream``; ConfigError for another name."""
    if name == "tiny-llada":
        return _tiny_llada()
    if name == "tiny-dream":
        return _tiny_dream()
    raise ConfigError(f"model={name}: there are recipes for tiny-llada and tiny-dream.")


def _tiny_llada() -> ModelShape:
    ids = vocabulary.token_ids("llada")
    return ModelShape(
        family="llada", layers=LAYERS, width=WIDTH, heads=HEADS, kv_heads=HEADS,
        head_dim=WIDTH // HEADS, mlp_width=MLP_WIDTH, vocab=len(ids), rope_theta=10000.0,
        norm_eps=1e-5, qkv_bias=False, tied=False, rope_in_float32=True, shifted=False,
        mask_id=ids["<|mdm_mask|>"], eos_id=ids["<|endoftext|>"], pad_id=ids["<|endoftext|>"],
        eot_id=ids["<|eot_id|>"], bos_id=ids["<|startoftext|>"],
    )  # fmt: skip


def _tiny_dream() -> ModelShape:
    ids = vocabulary.token_ids("dream")
    return ModelShape(
        family="dream", layers=LAYERS, width=WIDTH, heads=HEADS, kv_heads=HEADS // 2,
        head_dim=WIDTH // HEADS, mlp_width=MLP_WIDTH, vocab=len(ids), rope_theta=10000.0,
        norm_eps=1e-6, qkv_bias=True, tied=False, rope_in_float32=False, shifted=True,
        mask_id=ids["<|mask|>"], eos_id=ids["<|endoftext|>"], pad_id=ids["<|endoftext|>"],
        eot_id=ids["<|im_end|>"], bos_id=ids["<|beginoftext|>"],
    )  # fmt: skip
