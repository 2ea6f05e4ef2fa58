from __future__ import annotations

from building import random_model

from dllmx.bench.floors import Machine, machine_of, step_floor
from dllmx.bench.overhead import parameter_count
from dllmx.config.schema import HardwareConfig

MODEL = random_model("llada")
SHAPE = MODEL.shape


def test_the_bytes_of_a_step_are_the_weights_and_the_stored_keys_and_values() -> None:
    slow_memory = Machine(operations=1e30, bytes=1.0)
    moved = step_floor(SHAPE, [1] * SHAPE.layers, 0, 1, 2, slow_memory)
    norms = SHAPE.width * (2 * SHAPE.layers + 1)
    embedding = SHAPE.vocab * SHAPE.width
    assert moved == 2 * (parameter_count(MODEL) - norms - embedding)
    stored = step_floor(SHAPE, [1] * SHAPE.layers, 10, 1, 2, slow_memory) - moved
    assert stored == 2 * 2 * 10 * SHAPE.width * SHAPE.layers


def test_operations_are_two_a_weight_and_row_and_four_a_row_and_key() -> None:
    slow = Machine(operations=1.0, bytes=1e30)
    per_row = step_floor(SHAPE, [1, 0, 0], 0, 0, 2, slow)
    assert step_floor(SHAPE, [5, 3, 2], 0, 0, 2, slow) == 10 * per_row
    attention = step_floor(SHAPE, [5, 3, 2], 7, 0, 2, slow) - 10 * per_row
    assert attention == 10 * 7 * 4 * SHAPE.width
    head = step_floor(SHAPE, [1, 0, 0], 0, 3, 2, slow) - per_row
    assert head == 2 * 3 * SHAPE.vocab * SHAPE.width


def test_a_profile_without_peaks_has_no_floor() -> None:
    assert machine_of(HardwareConfig("cpu", "cpu", "float32", "torch")) is None
