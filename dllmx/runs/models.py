"""Models stay loaded between the jobs of one process, so that a sweep loads each once."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING

from dllmx.config.schema import HardwareConfig, ModelConfig
from dllmx.runs.identity import digest

if TYPE_CHECKING:
    from dllmx.models.model import Model

KEPT_BYTES = 2 * 1024**3
"""Weights kept besides the model in use; large models are dropped before the next is loaded."""

_loaded: dict[str, Model] = {}


def obtain_model(model: ModelConfig, hardware: HardwareConfig) -> Model:
    """The model of this configuration, loaded now or by an earlier job of this process."""
    from dllmx.models.loading import load_model

    key = digest([asdict(model), asdict(hardware)])
    if key not in _loaded:
        _make_room()
        _loaded[key] = load_model(model, hardware)
    return _loaded[key]


def _make_room() -> None:
    while _loaded and sum(weight_bytes(model) for model in _loaded.values()) > KEPT_BYTES:
        del _loaded[next(iter(_loaded))]


def weight_bytes(model: Model) -> int:
    """Bytes of a model's weights; tied tensors count once."""
    weights = model.weights
    tensors = [weights.embed, weights.final_norm, weights.head]
    for layer in weights.layers:
        values = (getattr(layer, field.name) for field in fields(layer))
        tensors += [value for value in values if value is not None]
    return sum({t.data_ptr(): t.numel() * t.element_size() for t in tensors}.values())
