"""LLaDA: LLaDA-8B-Base, LLaDA-8B-Instruct, LLaDA-1.5 (Nie et al. 2025, arXiv:2502.09992)."""

from __future__ import annotations

from typing import Any

from dllmx.models.family import ConfigKeys, Family, TensorNames, head_size
from dllmx.models.model import ModelShape

NAMES = TensorNames(
    embed="model.transformer.wte",
    final_norm="model.transformer.ln_f",
    head="model.transformer.ff_out",
    layer="model.transformer.blocks.{index}.",
    attn_norm="attn_norm",
    q="q_proj",
    k="k_proj",
    v="v_proj",
    attn_out="attn_out",
    mlp_norm="ff_norm",
    gate="ff_proj",
    up="up_proj",
    down="ff_out",
)

# The configuration class on the Hub has other defaults for several of these, so that every one
# must stand in the file.
SUPPORTED: dict[str, Any] = {
    "rope": True,
    "alibi": False,
    "layer_norm_type": "rms",
    "layer_norm_with_affine": True,
    "bias_for_layer_norm": False,
    "attention_layer_norm": False,
    "activation_type": "silu",
    "block_type": "llama",
    "block_group_size": 1,
    "include_bias": False,
    "input_emb_norm": False,
    "scale_logits": False,
}


def read(keys: ConfigKeys) -> ModelShape:
    """The shape that LLaDA's config keys describe."""
    for key, value in SUPPORTED.items():
        keys.must_be(key, value)
    vocab = keys.whole("vocab_size")
    keys.must_be("embedding_size", vocab)
    return ModelShape(
        family=FAMILY.name,
        layers=keys.whole("n_layers"),
        width=keys.whole("d_model"),
        heads=keys.whole("n_heads"),
        kv_heads=keys.whole("n_kv_heads"),
        head_dim=head_size(keys, "d_model", "n_heads"),
        mlp_width=keys.whole("mlp_hidden_size"),
        vocab=vocab,
        rope_theta=keys.positive("rope_theta"),
        norm_eps=keys.positive("rms_norm_eps"),
        qkv_bias=keys.flag("include_qkv_bias"),
        tied=keys.flag("weight_tying"),
        rope_in_float32=keys.flag("rope_full_precision"),
        shifted=False,
        mask_id=keys.whole("mask_token_id"),
        eos_id=keys.whole("eos_token_id"),
        pad_id=keys.whole("pad_token_id"),
        eot_id=keys.whole_or_none("eot_token_id"),
        bos_id=keys.whole_or_none("bos_token_id"),
    )


def write(shape: ModelShape) -> dict[str, Any]:
    """LLaDA's config keys for ``shape``."""
    return {
        "model_type": "llada",
        "architectures": ["LLaDAModelLM"],
        **SUPPORTED,
        "n_layers": shape.layers,
        "d_model": shape.width,
        "n_heads": shape.heads,
        "n_kv_heads": shape.kv_heads,
        "mlp_hidden_size": shape.mlp_width,
        "vocab_size": shape.vocab,
        "embedding_size": shape.vocab,
        "rope_theta": shape.rope_theta,
        "rms_norm_eps": shape.norm_eps,
        "include_qkv_bias": shape.qkv_bias,
        "weight_tying": shape.tied,
        "rope_full_precision": shape.rope_in_float32,
        "mask_token_id": shape.mask_id,
        "eos_token_id": shape.eos_id,
        "pad_token_id": shape.pad_id,
        "eot_token_id": shape.eot_id,
        "bos_token_id": shape.bos_id,
    }


FAMILY = Family(
    name="llada",
    model_type="llada",
    names=NAMES,
    read=read,
    write=write,
    end_of_turn="<|eot_id|>",
    bos_before_plain_text=False,
)
