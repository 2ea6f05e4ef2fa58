"""The least time that a step can take on a machine: its bytes and its operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dllmx.config.schema import HardwareConfig
from dllmx.models.model import ModelShape


@dataclass(frozen=True, slots=True)
class Machine:
    """Peak rates: ``operations`` and ``bytes`` a second."""

    operations: float
    bytes: float

    def seconds(self, operations: float, moved: float) -> float:
        """The larger of the time to compute and the time to move the bytes."""
        return max(operations / self.operations, moved / self.bytes)


def machine_of(hardware: HardwareConfig) -> Machine | None:
    """The peak rates that the profile states; None where it states none."""
    if hardware.peak_tflops is None or hardware.bandwidth_gbs is None:
        return None
    return Machine(hardware.peak_tflops * 1e12, hardware.bandwidth_gbs * 1e9)


def step_floor(
    shape: ModelShape,
    rows: Sequence[int],
    keys: int,
    predicted: int,
    element: int,
    machine: Machine,
) -> float:
    """Seconds of one forward: every weight and stored key and value read once, or its operations.

    ``rows``: rows computed at each layer, ``keys``: positions that each attends over,
    ``predicted``: rows given to the output head, ``element``: bytes a number. Activations are
    taken to cost nothing.
    """
    attention = shape.heads * shape.head_dim
    per_layer = _layer_weights(shape)
    head = shape.vocab * shape.width if predicted else 0
    stored = 2 * shape.kv_heads * shape.head_dim * keys
    moved = element * (len(rows) * (per_layer + stored) + head)
    total = sum(rows)
    operations = 2 * total * per_layer + 4 * total * keys * attention + 2 * predicted * head
    return machine.seconds(operations, moved)


def _layer_weights(shape: ModelShape) -> int:
    attention = shape.heads * shape.head_dim
    projected = attention + 2 * shape.kv_heads * shape.head_dim
    return shape.width * (projected + attention + 3 * shape.mlp_width)
