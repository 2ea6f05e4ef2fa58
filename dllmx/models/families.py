"""The families by name, and the shape that a config.json describes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dllmx.errors import ConfigError
from dllmx.models import dream, llada
from dllmx.models.family import ConfigKeys, Family
from dllmx.models.model import ModelShape

FAMILIES = {family.name: family for family in (llada.FAMILY, dream.FAMILY)}


def family_of(values: Mapping[str, Any], origin: str) -> Family:
    """The family whose ``model_type`` stands in ``values``; ``origin`` is named in errors."""
    model_type = values.get("model_type")
    for family in FAMILIES.values():
        if family.model_type == model_type:
            return family
    known = ", ".join(repr(family.model_type) for family in FAMILIES.values())
    raise ConfigError(f"{origin}: model_type is {model_type!r}; supported are {known}")


def shape_of(values: Mapping[str, Any], origin: str) -> ModelShape:
    """The shape described by the keys of a ``config.json``. ConfigError where it cannot be run."""
    shape = family_of(values, origin).read(ConfigKeys(values, origin))
    _check_sizes(shape, origin)
    check_ids(shape, origin)
    return shape


def check_ids(shape: ModelShape, origin: str) -> None:
    """ConfigError where a special id is not in the vocabulary, or the mask is another one too."""
    for key in ("mask_id", "eos_id", "pad_id", "eot_id", "bos_id"):
        value = getattr(shape, key)
        if value is not None and not 0 <= value < shape.vocab:
            raise ConfigError(
                f"{origin}: {key} is {value}; ids of this vocabulary are 0 to {shape.vocab - 1}"
            )
    if shape.mask_id in (shape.eos_id, shape.pad_id):
        raise ConfigError(
            f"{origin}: mask_id {shape.mask_id} is also the id that ends or pads a text; they "
            "must differ"
        )


def _check_sizes(shape: ModelShape, origin: str) -> None:
    for key in ("layers", "width", "kv_heads", "mlp_width", "vocab"):
        if getattr(shape, key) < 1:
            raise ConfigError(f"{origin}: {key} is {getattr(shape, key)}; at least 1 is needed")
    if shape.heads % shape.kv_heads:
        raise ConfigError(
            f"{origin}: {shape.heads} query heads cannot share {shape.kv_heads} key/value heads; "
            "the one must be a multiple of the other"
        )
