"""The recorded trajectories of published implementations, and the checkpoints they ran on."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

from dllmx.config.schema import HardwareConfig, ModelConfig
from dllmx.models.loading import load_model
from dllmx.models.model import Model

REFERENCE = Path(__file__).parent / "reference"
TIE = 1e-6
"""Smallest gap between confidences at which an order of commits is owed."""


def recorded_names(folder: str) -> list[str]:
    """Names of the configurations recorded in a folder of ``tests/reference``."""
    files = (REFERENCE / folder).glob("*.json.gz")
    return sorted(path.name.removesuffix(".json.gz") for path in files)


def recorded(folder: str, name: str) -> dict[str, Any]:
    """Settings and runs of one recorded configuration."""
    content: dict[str, Any] = json.loads(
        gzip.decompress((REFERENCE / folder / f"{name}.json.gz").read_bytes())
    )
    return content


@cache
def reference_model(name: str, eot_id: int | None = None) -> Model:
    """A reference checkpoint in float32."""
    family = "dream" if "dream" in name else "llada"
    folder = str(REFERENCE / name)
    config = ModelConfig(name, family, "none", chat=False, path=folder, eot_id=eot_id)
    return load_model(config, HardwareConfig("cpu", "cpu", "float32", "torch"))


def commits_of(step: dict[str, Any]) -> list[tuple[int, int]]:
    """The commits of a recorded step, ascending."""
    return sorted((position, token) for position, token in step["commit"])
