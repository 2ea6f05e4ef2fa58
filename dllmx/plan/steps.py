"""The steps of a decode that is planned: which rows each of them computes.

They come from the policy itself, which decodes on a small random model with the same lengths and
commits on a fixed schedule; or from the trace of a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dllmx.bench.forced import forced_session, refuse_guidance
from dllmx.bench.steps import RowWatch, kind_of
from dllmx.config.schema import HardwareConfig, RunConfig
from dllmx.decode.batch import build_parts
from dllmx.models.model import Model, ModelShape
from dllmx.models.random_weights import random_weights

HOST = HardwareConfig("cpu", "cpu", "float32", "torch")
WATCHED_LAYERS = 4
"""Layers of the small model where the rows differ by layer: the first, two between, the last."""


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """``rows``: rows computed at each layer that was watched; ``keys``: positions that each attends
    over; ``predicted``: rows whose logits are read.
    """

    kind: str
    rows: tuple[int, ...]
    keys: int
    predicted: int

    def rows_of(self, layers: int) -> list[int]:
        """Rows at each of ``layers`` layers: first and last as watched, those between in turn."""
        if layers == len(self.rows):
            return list(self.rows)
        first, *between, last = self.rows if len(self.rows) > 1 else self.rows * 2
        middle = between or [first]
        inner = [middle[place % len(middle)] for place in range(max(layers - 2, 0))]
        return [first, *inner, last][-layers:]


def planned_steps(
    shape: ModelShape, config: RunConfig, prompt_length: int, tokens_per_step: float
) -> list[PlannedStep]:
    """The steps of one decode with the parts of ``config`` on the fixed schedule.

    ConfigError for guidance, whose forwards are two.
    """
    refuse_guidance(config, "plan")
    hooked = build_parts(config).cache.needs.layer_hook
    model = _small_model(shape, WATCHED_LAYERS if hooked else 1)
    session = forced_session(model, replace(config, hardware=HOST), prompt_length, tokens_per_step)
    watch = RowWatch(session)
    steps = []
    while (record := watch.step()) is not None:
        rows = watch.rows_of(record)
        counts = tuple(rows.counts(model.shape.layers))
        kind = kind_of(record.full, bool(rows.by_layer), record.reason)
        steps.append(PlannedStep(kind, counts, rows.length, record.predicted))
    return steps


def traced_steps(entry: Mapping[str, Any], gen_length: int) -> Iterator[PlannedStep]:
    """The steps of one sample of a trace. Logits count for the masks of the step's block.

    ``entry``: as ``dllmx.runs.trace.read_trace`` gives it.
    """
    start = len(entry["prompt_ids"])
    length = start + gen_length
    masks = set(range(start, length))
    for step in entry["steps"]:
        lo, hi = step["block"]
        predicted = sum(lo <= position < hi for position in masks)
        rows = _traced_rows(step, length)
        kind = kind_of(step["full"], len(rows) > 1, step["reason"])
        yield PlannedStep(kind, rows, length, predicted)
        masks -= {position for position, _ in step["commit"]} | set(step["filled"])
        masks |= set(step["remask"])


def _traced_rows(step: Mapping[str, Any], length: int) -> tuple[int, ...]:
    if step["full"]:
        return (length,)
    rows = set(step["rows"])
    packets: Sequence[Sequence[int]] = step["note"].get("packets") or [()]
    return tuple(len(rows.union(packet)) for packet in packets)


def _small_model(shape: ModelShape, layers: int) -> Model:
    """Random weights of the same family, small enough that only the decisions take time."""
    small = replace(
        shape,
        layers=layers,
        width=32,
        heads=2,
        kv_heads=2,
        head_dim=16,
        mlp_width=32,
        vocab=64,
        mask_id=63,
        eos_id=62,
        pad_id=62,
        eot_id=None,
        bos_id=None,
    )
    return Model(small, random_weights(small, 0, torch.float32, "cpu"))
