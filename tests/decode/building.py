"""Small configurations and models for tests of the decode loop."""

from __future__ import annotations

from typing import Any

import torch

from dllmx.config import parts
from dllmx.config.check import check_combination
from dllmx.config.schema import (
    HardwareConfig,
    LoggerConfig,
    ModelConfig,
    PolicyConfig,
    RunConfig,
)
from dllmx.models.model import Model, ModelShape
from dllmx.models.random_weights import random_weights


def decode_config(
    sampler: dict[str, Any], cache: dict[str, Any], commit: dict[str, Any], **plain: Any
) -> RunConfig:
    """A RunConfig for decoding alone: the parts as given, the rest of no importance."""
    config = RunConfig(
        model=ModelConfig("test", "llada", "none", chat=False),
        task=None,
        hardware=HardwareConfig("cpu", "cpu", "float32", "torch"),
        sampler=parts.load("sampler", sampler["name"]).Config(**sampler),
        cache=parts.load("cache", cache["name"]).Config(**cache),
        commit=parts.load("commit", commit["name"]).Config(**commit),
        policy=PolicyConfig("test"),
        logger=LoggerConfig("none"),
        **plain,
    )
    check_combination(config)
    return config


def random_model(family: str, seed: int = 0, dtype: torch.dtype = torch.float32) -> Model:
    """A tiny random model of either family; Dream's has grouped heads, biases and the shift."""
    dream = family == "dream"
    shape = ModelShape(
        family=family,
        layers=3,
        width=32,
        heads=4,
        kv_heads=2 if dream else 4,
        head_dim=8,
        mlp_width=48,
        vocab=61,
        rope_theta=10000.0,
        norm_eps=1e-6,
        qkv_bias=dream,
        tied=False,
        rope_in_float32=not dream,
        shifted=dream,
        mask_id=59,
        eos_id=58,
        pad_id=0,
    )
    weights = random_weights(shape, seed, dtype, torch.device("cpu"))
    return Model(shape, weights)
