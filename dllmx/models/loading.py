"""From the configuration to a model in memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dllmx.config.schema import HardwareConfig, ModelConfig
from dllmx.errors import ConfigError
from dllmx.kernels.choice import choose
from dllmx.models.checkpoint import load_weights, read_shape
from dllmx.models.device import check_machine
from dllmx.models.families import check_ids, shape_of
from dllmx.models.model import Model, ModelShape
from dllmx.models.random_weights import random_weights
from dllmx.models.resolve import resolve_checkpoint

RANDOM_WEIGHTS_SEED = 0  # one random model whatever the run's seed, so that runs can be compared


def load_model(config: ModelConfig, hardware: HardwareConfig) -> Model:
    """The model that ``config`` names, on the device and in the dtype that ``hardware`` names.

    ConfigError where the configuration cannot work, RunError where the checkpoint is damaged.
    """
    device = device_of(hardware)
    choose(hardware.kernels, device, hardware.attention)  # refuses before anything is read
    dtype = dtype_of(hardware)
    shape = load_shape(config)
    if config.weights == "random":
        return Model(shape, random_weights(shape, RANDOM_WEIGHTS_SEED, dtype, device))
    return Model(shape, load_weights(resolve_checkpoint(config), shape, dtype, device))


def load_shape(config: ModelConfig) -> ModelShape:
    """The shape of the model that ``config`` names, without its weights.

    Random weights take it from ``model.path``, else from ``model.shape``, else from the
    checkpoint; special ids that ``config`` gives replace those of the checkpoint.
    """
    stored, origin = _stored_shape(config)
    if stored.family != config.family:
        raise ConfigError(
            f"model={config.name} is of the family {config.family}, but {origin} is of "
            f"{stored.family}; choose a model of that family, such as model={stored.family}"
        )
    given = {
        "mask_id": config.mask_id,
        "eos_id": config.eos_id,
        "eot_id": config.eot_id,
        "pad_id": config.pad_id,
        "layers": _depth(config, stored, origin),
    }
    changed: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    shape = replace(stored, **changed)
    check_ids(shape, f"model={config.name}")
    return shape


def device_of(hardware: HardwareConfig) -> torch.device:
    """The device that ``hardware`` names. ConfigError where the profile is not for this machine."""
    check_machine(hardware)
    return torch.device(hardware.device)


def dtype_of(hardware: HardwareConfig) -> torch.dtype:
    """The dtype of weights and activations that ``hardware`` names."""
    dtype: torch.dtype = getattr(torch, hardware.dtype)
    return dtype


def _stored_shape(config: ModelConfig) -> tuple[ModelShape, str]:
    """The shape before any change, and where it came from."""
    if config.weights == "random" and config.path is None and config.shape is not None:
        origin = f"model.shape of model={config.name}"
        return shape_of(config.shape, origin), origin
    folder: Path = resolve_checkpoint(config)
    return read_shape(folder), str(folder)


def _depth(config: ModelConfig, stored: ModelShape, origin: str) -> int | None:
    if config.layers is not None and config.layers > stored.layers:
        raise ConfigError(
            f"model.layers={config.layers}: {origin} has {stored.layers} layers; ask for fewer"
        )
    return config.layers
