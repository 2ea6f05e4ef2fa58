"""From planned steps to the least time that they can take on a GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import torch

from dllmx.bench.floors import Machine, machine_of, step_floor
from dllmx.bench.steps import FULL, KINDS
from dllmx.config.schema import HardwareConfig
from dllmx.errors import ConfigError
from dllmx.models.model import ModelShape
from dllmx.plan.steps import PlannedStep

BYTES_ONLY = Machine(math.inf, 1.0)
OPERATIONS_ONLY = Machine(1.0, math.inf)
"""Machines on which a floor in seconds is the number of bytes, or of operations."""


@dataclass(frozen=True, slots=True)
class KindCost:
    """Means over the steps of one kind. ``rows``: of a layer; ``moved``: bytes; ``limit``: what
    most of its steps wait for, memory or arithmetic.
    """

    kind: str
    steps: int
    rows: float
    predicted: float
    moved: float
    operations: float
    milliseconds: float
    limit: str


@dataclass(frozen=True)
class DecodeCost:
    """One decode, or several: ``tokens`` in ``steps``, ``seconds`` at the floor of every step."""

    tokens: int
    kinds: tuple[KindCost, ...]

    @property
    def steps(self) -> int:
        """Forwards."""
        return sum(kind.steps for kind in self.kinds)

    @cached_property
    def seconds(self) -> float:
        """All steps at their floors."""
        return sum(kind.steps * kind.milliseconds for kind in self.kinds) / 1e3

    def steps_of(self, kind: str) -> int:
        """How many of the steps are of ``kind``."""
        return sum(cost.steps for cost in self.kinds if cost.kind == kind)

    @property
    def tokens_per_forward(self) -> float:
        """TPF."""
        return self.tokens / self.steps

    @property
    def tokens_per_second(self) -> float:
        """TPS: more is not possible."""
        return self.tokens / self.seconds

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "tokens": self.tokens,
            "steps": self.steps,
            "tokens_per_forward": self.tokens_per_forward,
            "seconds": self.seconds,
            "tokens_per_second": self.tokens_per_second,
            "kinds": [asdict(kind) for kind in self.kinds],
        }


@dataclass(frozen=True, slots=True)
class Target:
    """A model's shape on a GPU: its peak rates, bytes a number and bytes of memory (None: any)."""

    shape: ModelShape
    machine: Machine
    element: int
    memory: float | None = None

    @staticmethod
    def of(shape: ModelShape, hardware: HardwareConfig) -> Target:
        """ConfigError where the profile does not state the peaks for its dtype."""
        machine = machine_of(hardware)
        if machine is None:
            raise ConfigError(
                f"hardware={hardware.name} states no peaks. Use a profile that does, such as "
                "hardware=a100-80gb, or set hardware.peak_tflops and hardware.bandwidth_gbs."
            )
        if hardware.device == "cuda" and hardware.dtype == "float32":
            raise ConfigError(
                "hardware.dtype=float32 is slower than the hardware.peak_tflops of "
                f"hardware={hardware.name}, which are of 16-bit numbers. Use dtype=bfloat16."
            )
        memory = None if hardware.memory_gb is None else hardware.memory_gb * 1e9
        return Target(shape, machine, getattr(torch, hardware.dtype).itemsize, memory)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights: those that a step reads, the embedding, norms and biases."""
        shape = self.shape
        read = self.floor(PlannedStep(FULL, (1,), 0, 1), BYTES_ONLY)
        embedding = 0 if shape.tied else shape.vocab * shape.width
        norms = shape.width * (2 * shape.layers + 1)
        bias = shape.layers * (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        unread = embedding + norms + (bias if shape.qkv_bias else 0)
        return round(read) + self.element * unread

    def store_bytes(self, length: int) -> int:
        """Bytes of the keys and values of ``length`` positions."""
        shape = self.shape
        return 2 * self.element * shape.layers * shape.kv_heads * shape.head_dim * length

    def floor(self, step: PlannedStep, machine: Machine | None = None) -> float:
        """Seconds of one step on ``machine``, by default this target's own."""
        rows = step.rows_of(self.shape.layers)
        chosen = machine or self.machine
        return step_floor(self.shape, rows, step.keys, step.predicted, self.element, chosen)


def decode_cost(target: Target, steps: Sequence[PlannedStep], tokens: int) -> DecodeCost:
    """The cost of ``steps``, which commit ``tokens``."""
    groups = [[step for step in steps if step.kind == kind] for kind in KINDS]
    return DecodeCost(tokens, tuple(_kind_cost(target, group) for group in groups if group))


def _kind_cost(target: Target, steps: Sequence[PlannedStep]) -> KindCost:
    layers = target.shape.layers
    moved = [target.floor(step, BYTES_ONLY) for step in steps]
    operations = [target.floor(step, OPERATIONS_ONLY) for step in steps]
    seconds = [target.floor(step) for step in steps]
    waits = [
        byte / target.machine.bytes >= operation / target.machine.operations
        for byte, operation in zip(moved, operations, strict=True)
    ]
    return KindCost(
        kind=steps[0].kind,
        steps=len(steps),
        rows=_mean([sum(step.rows_of(layers)) / layers for step in steps]),
        predicted=_mean([step.predicted for step in steps]),
        moved=_mean(moved),
        operations=_mean(operations),
        milliseconds=1e3 * _mean(seconds),
        limit="memory" if 2 * sum(waits) >= len(waits) else "arithmetic",
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
