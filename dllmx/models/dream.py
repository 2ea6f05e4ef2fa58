"""Dream: Dream-v0 7B (Ye et al. 2025, arXiv:2508.15487), Dream-Coder and DiffuCoder.

Qwen2.5's shape without causality: biases on the query, key and value projections, grouped heads,
and logits shifted by one (row p predicts the token at p+1).
"""

from __future__ import annotations

from typing import Any

from dllmx.models.family import ConfigKeys, Family, TensorNames, head_size
from dllmx.models.model import ModelShape

NAMES = TensorNames(
    embed="model.embed_tokens",
    final_norm="model.norm",
    head="lm_head",
    layer="model.layers.{index}.",
    attn_norm="input_layernorm",
    q="self_attn.q_proj",
    k="self_attn.k_proj",
    v="self_attn.v_proj",
    attn_out="self_attn.o_proj",
    mlp_norm="post_attention_layernorm",
    gate="mlp.gate_proj",
    up="mlp.up_proj",
    down="mlp.down_proj",
)


def read(keys: ConfigKeys) -> ModelShape:
    """The shape that Dream's config keys describe."""
    keys.must_be("hidden_act", "silu")
    # Absent and null both mean that the feature is off: there is no scaling without its keys.
    keys.must_be_unless_absent("rope_scaling", None)
    keys.must_be_unless_absent("use_sliding_window", False)
    head_dim = head_size(keys, "hidden_size", "num_attention_heads")
    keys.must_be_unless_absent("head_dim", head_dim)
    return ModelShape(
        family=FAMILY.name,
        layers=keys.whole("num_hidden_layers"),
        width=keys.whole("hidden_size"),
        heads=keys.whole("num_attention_heads"),
        kv_heads=keys.whole("num_key_value_heads"),
        head_dim=head_dim,
        mlp_width=keys.whole("intermediate_size"),
        vocab=keys.whole("vocab_size"),
        rope_theta=keys.positive("rope_theta"),
        norm_eps=keys.positive("rms_norm_eps"),
        qkv_bias=True,
        tied=keys.flag("tie_word_embeddings"),
        rope_in_float32=False,
        shifted=True,
        mask_id=keys.whole("mask_token_id"),
        eos_id=keys.whole("eos_token_id"),
        pad_id=keys.whole("pad_token_id"),
        eot_id=keys.whole_or_none("eot_token_id"),
        bos_id=keys.whole_or_none("bos_token_id"),
    )


def write(shape: ModelShape) -> dict[str, Any]:
    """Dream's config keys for ``shape``."""
    return {
        "model_type": "Dream",
        "architectures": ["DreamModel"],
        "hidden_act": "silu",
        "rope_scaling": None,
        "use_sliding_window": False,
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.width,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "intermediate_size": shape.mlp_width,
        "vocab_size": shape.vocab,
        "rope_theta": shape.rope_theta,
        "rms_norm_eps": shape.norm_eps,
        "tie_word_embeddings": shape.tied,
        "mask_token_id": shape.mask_id,
        "eos_token_id": shape.eos_id,
        "pad_token_id": shape.pad_id,
        "eot_token_id": shape.eot_id,
        "bos_token_id": shape.bos_id,
    }


FAMILY = Family(
    name="dream",
    model_type="Dream",
    names=NAMES,
    read=read,
    write=write,
    end_of_turn="<|im_end|>",
    bos_before_plain_text=True,
)
