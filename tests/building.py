"""Small configurations and models for tests of the decode loop."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import pytest
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


def install_part(monkeypatch: pytest.MonkeyPatch, group: str, name: str, part: type) -> None:
    """Make ``part`` available as the option ``name`` of ``group``, as if it had a file there."""

    @dataclass(frozen=True)
    class Config:
        name: str

    module = ModuleType(f"{parts.ROOMS[group]}.{name}")
    vars(module).update({"Config": Config, group.capitalize(): part})
    monkeypatch.setitem(sys.modules, module.__name__, module)


def random_model(family: str, seed: int = 0, dtype: torch.dtype = torch.float32) -> Model:
    """A tiny random model of either family; Dream's has grouped heads, biases and the shift.

    Its matrices are scaled up, so that the confidences of different positions differ by far more
    than rounding errors.
    """
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
    scaled = tuple(
        replace(
            layer,
            qkv=layer.qkv * 15,
            attn_out=layer.attn_out * 15,
            gate_up=layer.gate_up * 9,
            mlp_down=layer.mlp_down * 9,
        )
        for layer in weights.layers
    )
    return Model(shape, replace(weights, layers=scaled, head=weights.head * 40))
