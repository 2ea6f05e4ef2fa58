"""A second implementation of both families, slow and separate, and folders written with it.

It shares nothing with dllmx: separate matrices, one head at a time, complex rotation.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

LLADA_KEYS = {
    "model_type": "llada",
    "architectures": ["LLaDAModelLM"],
    "d_model": 32,
    "n_layers": 3,
    "n_heads": 4,
    "n_kv_heads": 4,
    "mlp_hidden_size": 40,
    "mlp_ratio": 4,
    "vocab_size": 50,
    "embedding_size": 50,
    "weight_tying": False,
    "rope": True,
    "rope_theta": 500000.0,
    "rope_full_precision": True,
    "layer_norm_type": "rms",
    "rms_norm_eps": 1e-5,
    "layer_norm_with_affine": True,
    "bias_for_layer_norm": False,
    "attention_layer_norm": False,
    "activation_type": "silu",
    "block_type": "llama",
    "block_group_size": 1,
    "include_bias": False,
    "include_qkv_bias": False,
    "input_emb_norm": False,
    "scale_logits": False,
    "alibi": False,
    "mask_token_id": 49,
    "eos_token_id": 48,
    "pad_token_id": 48,
    "torch_dtype": "float32",
}
DREAM_KEYS = {
    "model_type": "Dream",
    "architectures": ["DreamModel"],
    "hidden_size": 48,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "rope_scaling": None,
    "vocab_size": 50,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "mask_token_id": 49,
    "pad_token_id": 48,
    "eos_token_id": 48,
    "bos_token_id": 48,
    "torch_dtype": "float32",
}


@dataclass(frozen=True)
class Plain:
    """Sizes and tensor names of one family, as its checkpoints have them."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    mlp: int
    vocab: int
    theta: float
    eps: float
    tied: bool
    bias: bool
    shifted: bool
    embed: str
    norm: str
    head: str
    layer: str
    names: tuple[str, ...]  # attn_norm, q, k, v, attn_out, mlp_norm, gate, up, down

    def layer_names(self, index: int) -> list[str]:
        return [self.layer.format(index) + name for name in self.names]


def plain_llada(keys: dict) -> Plain:
    return Plain(
        width=keys["d_model"],
        layers=keys["n_layers"],
        heads=keys["n_heads"],
        kv_heads=keys["n_kv_heads"],
        mlp=keys["mlp_hidden_size"],
        vocab=keys["vocab_size"],
        theta=keys["rope_theta"],
        eps=keys["rms_norm_eps"],
        tied=keys["weight_tying"],
        bias=keys["include_qkv_bias"],
        shifted=False,
        embed="model.transformer.wte",
        norm="model.transformer.ln_f",
        head="model.transformer.ff_out",
        layer="model.transformer.blocks.{}.",
        names=(
            *("attn_norm", "q_proj", "k_proj", "v_proj", "attn_out"),
            *("ff_norm", "ff_proj", "up_proj", "ff_out"),
        ),
    )


def plain_dream(keys: dict) -> Plain:
    return Plain(
        width=keys["hidden_size"],
        layers=keys["num_hidden_layers"],
        heads=keys["num_attention_heads"],
        kv_heads=keys["num_key_value_heads"],
        mlp=keys["intermediate_size"],
        vocab=keys["vocab_size"],
        theta=keys["rope_theta"],
        eps=keys["rms_norm_eps"],
        tied=keys["tie_word_embeddings"],
        bias=True,
        shifted=True,
        embed="model.embed_tokens",
        norm="model.norm",
        head="lm_head",
        layer="model.layers.{}.",
        names=(
            "input_layernorm",
            *(f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "o_proj")),
            "post_attention_layernorm",
            *(f"mlp.{name}" for name in ("gate_proj", "up_proj", "down_proj")),
        ),
    )


def plain_of(keys: dict) -> Plain:
    return plain_llada(keys) if keys["model_type"] == "llada" else plain_dream(keys)


def make_tensors(keys: dict, seed: int = 0) -> dict[str, Tensor]:
    """Every tensor of a checkpoint with these config keys, by its name."""
    plain = plain_of(keys)
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator) * 0.3

    kv = plain.width // plain.heads * plain.kv_heads
    sizes = [
        *([plain.width], [plain.width, plain.width], [kv, plain.width], [kv, plain.width]),
        *([plain.width, plain.width], [plain.width], [plain.mlp, plain.width]),
        *([plain.mlp, plain.width], [plain.width, plain.mlp]),
    ]
    tensors = {f"{plain.embed}.weight": normal(plain.vocab, plain.width)}
    tensors[f"{plain.norm}.weight"] = 1 + normal(plain.width)
    if not plain.tied:
        tensors[f"{plain.head}.weight"] = normal(plain.vocab, plain.width)
    for index in range(plain.layers):
        for position, (name, size) in enumerate(zip(plain.layer_names(index), sizes, strict=True)):
            tensors[f"{name}.weight"] = normal(*size) + (1 if len(size) == 1 else 0)
            if plain.bias and position in (1, 2, 3):
                tensors[f"{name}.bias"] = normal(size[0])
    return tensors


def write_folder(folder: Path, keys: dict, tensors: dict[str, Tensor], shards: int = 1) -> Path:
    """A checkpoint folder in the Hub's layout."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(keys))
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    names = list(tensors)
    where = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name] for name in names[shard::shards]}
        save_file(part, folder / file, metadata={"format": "pt"})
        where.update(dict.fromkeys(part, file))
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def plain_logits(keys: dict, tensors: dict[str, Tensor], ids: list[int]) -> Tensor:
    """Logits [T, V] aligned with positions, for one sequence."""
    plain = plain_of(keys)
    x = tensors[f"{plain.embed}.weight"][torch.tensor(ids)]
    for index in range(plain.layers):
        x = _plain_layer(plain, tensors, plain.layer_names(index), x)
    head = tensors[f"{plain.embed if plain.tied else plain.head}.weight"]
    raw = _norm(x, tensors[f"{plain.norm}.weight"], plain.eps) @ head.T
    return torch.cat([raw[:1], raw[:-1]]) if plain.shifted else raw


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def _turn(x: Tensor, theta: float) -> Tensor:
    """Rotate rows [T, h] as complex numbers whose parts lie in the two halves."""
    length, size = x.shape
    frequency = torch.tensor([theta ** (-2 * pair / size) for pair in range(size // 2)])
    angle = torch.arange(length)[:, None] * frequency
    number = torch.complex(x[:, : size // 2], x[:, size // 2 :]) * torch.polar(
        torch.ones_like(angle), angle
    )
    return torch.cat([number.real, number.imag], dim=1)


def _plain_layer(plain: Plain, tensors: dict, names: list[str], x: Tensor) -> Tensor:
    attn_norm, q, k, v, attn_out, mlp_norm, gate, up, down = names

    def project(name: str, rows: Tensor) -> Tensor:
        return rows @ tensors[f"{name}.weight"].T + tensors.get(f"{name}.bias", 0.0)

    size = plain.width // plain.heads
    normed = _norm(x, tensors[f"{attn_norm}.weight"], plain.eps)
    queries, keys, values = (project(name, normed) for name in (q, k, v))
    mixed = []
    for head in range(plain.heads):
        shared = head // (plain.heads // plain.kv_heads)
        query = _turn(queries[:, head * size : (head + 1) * size], plain.theta)
        key = _turn(keys[:, shared * size : (shared + 1) * size], plain.theta)
        share = torch.softmax(query @ key.T / size**0.5, dim=-1)
        mixed.append(share @ values[:, shared * size : (shared + 1) * size])
    x = x + project(attn_out, torch.cat(mixed, dim=1))
    normed = _norm(x, tensors[f"{mlp_norm}.weight"], plain.eps)
    gated = project(gate, normed)
    return x + project(down, gated * torch.sigmoid(gated) * project(up, normed))
