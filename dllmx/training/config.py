"""Settings of a training run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from dllmx.errors import ConfigError

MODELS = ("tiny-llada", "tiny-dream")


@dataclass(frozen=True)
class TrainConfig:
    """Everything that a training run depends on.

    ``rate`` is the peak learning rate: reached after ``warmup`` steps, held, and taken to zero
    over the last ``decay`` share of ``steps``. The task mix is set anew every ``evaluate_every``
    steps, from ``evaluate_problems`` training problems a task. In ``output`` each model has a
    folder with the state of its run and, in the end, the finished ``checkpoint``. ``measure`` is
    the number of held-out problems a task on which the finished model is measured.
    """

    model: str = "tiny-llada"
    steps: int = 6000
    batch: int = 128
    rate: float = 2e-3
    warmup: int = 100
    decay: float = 0.57
    weight_decay: float = 0.01
    clip: float = 1.0
    seed: int = 0
    threads: int = 2
    save_every: int = 100
    evaluate_every: int = 250
    evaluate_problems: int = 48
    measure: int = 200
    output: str = "outputs/train-tiny"

    def __post_init__(self) -> None:
        """Check names and ranges."""
        if self.model not in MODELS:
            raise ConfigError(f"model={self.model}: there are recipes for {' and '.join(MODELS)}.")
        for name in ("steps", "batch", "threads", "save_every", "evaluate_every", "measure"):
            _at_least(name, getattr(self, name), 1)
        for name in ("warmup", "seed", "evaluate_problems", "weight_decay"):
            _at_least(name, getattr(self, name), 0)
        if not 0 < self.rate < 1:
            raise ConfigError(f"rate={self.rate}: give a peak learning rate between 0 and 1.")
        if not 0 <= self.decay <= 1:
            raise ConfigError(f"decay={self.decay}: give a share of the steps from 0 to 1.")
        if self.clip <= 0:
            raise ConfigError(f"clip={self.clip}: give a gradient norm > 0.")

    @property
    def folder(self) -> Path:
        """Where this model's run is kept."""
        return Path(self.output) / self.model

    def rate_at(self, step: int) -> float:
        """Learning rate of a step, counted from 0: rising, held, then down as 1 - sqrt(x)."""
        fall = self.decay * self.steps
        fallen = max(0.0, step - (self.steps - fall)) / max(fall, 1)
        return self.rate * min(1.0, (step + 1) / max(self.warmup, 1), 1 - math.sqrt(fallen))


def _at_least(name: str, value: float, least: int) -> None:
    if value < least:
        raise ConfigError(f"{name}={value}: give a number >= {least}.")
