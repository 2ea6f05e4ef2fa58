"""The state of a training run on disk: weights and optimizer moments, step, mix, log."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from dllmx.errors import ConfigError, RunError
from dllmx.training.config import TrainConfig

FREE = ("steps", "decay", "threads", "save_every", "measure", "output")
"""What may differ when a run is taken up again; the schedule only while the rate is held."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What a run knows besides its tensors: steps done, seconds spent, task mix and evaluations."""

    step: int
    seconds: float
    mix: dict[str, float]
    log: list[dict[str, Any]] = field(default_factory=list)


def save_state(
    folder: Path, config: TrainConfig, progress: Progress, tensors: Mapping[str, Tensor]
) -> None:
    """Write the state in one step: a kill leaves the old state or the new one, whole."""
    from safetensors.torch import save

    folder.mkdir(parents=True, exist_ok=True)
    note = {"config": json.dumps(asdict(config)), "progress": json.dumps(asdict(progress))}
    plain = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    _replace(folder / "state.safetensors", save(plain, metadata=note))


def load_state(folder: Path, config: TrainConfig) -> tuple[Progress, dict[str, Tensor]] | None:
    """The saved state, or None where there is none.

    ConfigError when it belongs to other settings; RunError when the file is damaged.
    """
    from safetensors import SafetensorError, safe_open

    path = folder / "state.safetensors"
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            note = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        saved, progress = json.loads(note["config"]), Progress(**json.loads(note["progress"]))
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path} cannot be read ({error}); delete it to start afresh.") from error
    _check_same_run(path, saved, asdict(config))
    return progress, tensors


def _check_same_run(path: Path, saved: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    for name, value in asked.items():
        if name not in FREE and saved.get(name) != value:
            raise ConfigError(
                f"{path} holds a run with {name}={saved.get(name)}, not {value}; "
                "give another output=FOLDER or delete it."
            )


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_suffix(".writing")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
