"""Every step of a decode beside the bare forward over the rows that it computed.

A bare forward is layers and output head over the same rows and keys; nothing is decided. The two
are timed one after the other, so that both see the same machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import mean, median
from typing import Any

import torch
from torch import Tensor

from dllmx.bench.floors import Machine, step_floor
from dllmx.bench.timing import DecisionClock, timed
from dllmx.decode.session import Session
from dllmx.engine.engine import Engine
from dllmx.engine.interface import LayerContext, Rows, View
from dllmx.engine.rows import RowSet, SlotSet
from dllmx.engine.trace import StepRecord

FULL, ENTRY, REFRESH, PARTIAL = "full", "window entry", "refresh", "partial"
KINDS = (FULL, ENTRY, REFRESH, PARTIAL)
"""Kinds of steps, in the order of tables."""

SLOT = SlotSet((0,))


@dataclass(frozen=True, slots=True)
class StepRows:
    """What a step computed: ``rows`` [R] sorted, None for all ``length`` positions.

    ``by_layer``: the rows of each layer where a layer hook changed them, else empty;
    ``predicted``: rows whose logits were read.
    """

    length: int
    rows: Tensor | None
    by_layer: tuple[Tensor, ...]
    predicted: int

    def counts(self, layers: int) -> list[int]:
        """Rows computed at each of ``layers`` layers."""
        if self.by_layer:
            return [rows.numel() for rows in self.by_layer]
        return [self.length if self.rows is None else self.rows.numel()] * layers


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of one step and of its bare forward (None: not timed at this step).

    ``rows``: mean over layers; ``floor``: seconds that the machine's peak rates allow, None
    where they are unknown.
    """

    kind: str
    rows: float
    step: float
    bare: float | None
    floor: float | None


@dataclass(frozen=True, slots=True)
class Round:
    """The steps of one decode, and the seconds that its decisions took (None: not watched)."""

    steps: list[StepTimes]
    decisions: float | None = None

    @property
    def seconds(self) -> float:
        """All steps together."""
        return sum(step.step for step in self.steps)

    @property
    def ratio(self) -> float:
        """The decode over its bare forwards; one that was not timed counts as its kind's mean."""
        return self.seconds / sum(_bare_seconds(steps) for steps in by_kind(self.steps).values())


@dataclass(frozen=True, slots=True)
class KindReport:
    """Medians over the steps of one kind: milliseconds of step and bare forward, and ratios.

    ``steps``: how many a decode has; ``ratio``: median over the pairs; ``floor_ratio``: step over
    the floor of the machine.
    """

    kind: str
    steps: int
    rows: float
    step_ms: float
    bare_ms: float
    ratio: float
    floor_ms: float | None
    floor_ratio: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


class RowWatch:
    """Takes a session's steps and knows which rows each of them computed, at every layer."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._asked: list[Tensor | None] = []
        if session.needs.layer_hook:
            cache = session.parts[0].cache
            self._inner = cache.on_layer
            setattr(cache, "on_layer", self._on_layer)  # noqa: B010  mypy refuses the assignment

    def step(self) -> StepRecord | None:
        """Advance by one step; its record, or None when the decode is finished."""
        self._asked = []
        return self.session.sequences[0].records[-1] if self.session.step() else None

    def rows_of(self, record: StepRecord) -> StepRows:
        """The rows of the step just taken."""
        length = self.session.views[0].length
        rows = None if record.row_positions is None else torch.tensor(record.row_positions)
        current = torch.arange(length) if rows is None else rows
        by_layer = []
        for asked in self._asked:
            current = current if asked is None else asked.cpu()
            by_layer.append(current)
        changed = any(asked is not None for asked in self._asked)
        return StepRows(length, rows, tuple(by_layer) if changed else (), record.predicted)

    def _on_layer(self, view: View, context: LayerContext) -> Rows | Tensor | None:
        wanted = self._inner(view, context)
        self._asked.append(wanted.positions if isinstance(wanted, Rows) else wanted)
        return wanted


class BareForwards:
    """Forwards over given rows on a canvas of their own, whose tokens never change.

    Where the rows differ by layer, each layer is an engine of its own.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._engine = session.engine
        self._single: list[Engine] = []
        self.prepare(StepRows(session.views[0].length, None, (), 1))()

    def prepare(self, rows: StepRows) -> Callable[[], None]:
        """The forward over ``rows``, ready to be timed."""
        device = self._engine.model.device
        if not rows.by_layer:
            chosen = (
                RowSet.of_span(0, rows.length, 1, device)
                if rows.rows is None
                else RowSet.of_columns([rows.rows], device)
            )
            return lambda: self._head(self._engine.forward(SLOT, chosen), rows.predicted)
        engines = self._engines(rows.length)
        by_layer = [RowSet.of_columns([layer], device) for layer in rows.by_layer]

        def layered() -> None:
            for engine, chosen in zip(engines, by_layer, strict=True):
                hidden = engine.forward(SLOT, chosen)
            self._head(hidden, rows.predicted)

        return layered

    @torch.inference_mode()
    def _head(self, hidden: Tensor, predicted: int) -> None:
        if predicted:
            self._engine.model.head_logits(hidden[0, -predicted:])

    def _engines(self, length: int) -> list[Engine]:
        if not self._single:
            self._single = [self._one_layer(index, length) for index in range(self._layers)]
        return self._single

    @property
    def _layers(self) -> int:
        return self._engine.model.shape.layers

    def _one_layer(self, index: int, length: int) -> Engine:
        model, session = self._engine.model, self._session
        layers = model.weights.layers[index : index + 1]
        cut = replace(
            model,
            shape=replace(model.shape, layers=1),
            weights=replace(model.weights, layers=layers),
        )
        whole = self._engine
        engine = Engine(cut, whole.canvas, whole.padding, session.needs.store, whole.kernels)
        engine.forward(SLOT, RowSet.of_span(0, length, 1, model.device))
        return engine


def kind_of(full: bool, by_layer: bool, reason: str) -> str:
    """One of KINDS: every row, a window's entry, rows that the layers chose, or any other."""
    if full:
        return FULL
    if by_layer or reason.startswith(REFRESH):
        return REFRESH
    return ENTRY if reason == ENTRY else PARTIAL


def paired_round(
    session: Session,
    bare: BareForwards,
    pair: Callable[[str, int], bool] = lambda kind, before: True,
    machine: Machine | None = None,
    most_steps: int | None = None,
) -> Round:
    """Take the steps of ``session``, each followed by its bare forward where ``pair`` says so.

    ``pair(kind, n)`` is asked with the number of steps of that kind before. Decisions are watched
    on the CPU only: on a GPU that would slow the steps.
    """
    model = session.model
    watch = RowWatch(session)
    clock = DecisionClock(session) if model.device.type == "cpu" else None
    seen: dict[str, int] = {}
    steps: list[StepTimes] = []
    while most_steps is None or len(steps) < most_steps:
        seconds, record = timed(model, watch.step)
        if record is None:
            break
        rows = watch.rows_of(record)
        kind = kind_of(record.full, bool(rows.by_layer), record.reason)
        before = seen.get(kind, 0)
        seen[kind] = before + 1
        beside = timed(model, bare.prepare(rows))[0] if pair(kind, before) else None
        counts = rows.counts(model.shape.layers)
        floor = None
        if machine is not None:
            element = model.weights.embed.element_size()
            floor = step_floor(model.shape, counts, rows.length, rows.predicted, element, machine)
        steps.append(StepTimes(kind, mean(counts), seconds, beside, floor))
    return Round(steps, None if clock is None else clock.seconds)


def by_kind(steps: Sequence[StepTimes]) -> dict[str, list[StepTimes]]:
    """The steps of each kind that occurs, in a fixed order of kinds."""
    groups = {kind: [step for step in steps if step.kind == kind] for kind in KINDS}
    return {kind: group for kind, group in groups.items() if group}


def kind_reports(rounds: Sequence[Round]) -> list[KindReport]:
    """Medians of each kind over all rounds."""
    together = by_kind([step for done in rounds for step in done.steps])
    return [_kind_report(kind, steps, len(rounds)) for kind, steps in together.items()]


def _kind_report(kind: str, steps: Sequence[StepTimes], rounds: int) -> KindReport:
    pairs = [(step.step, step.bare) for step in steps if step.bare is not None]
    step_ms = 1e3 * median(step.step for step in steps)
    floors = [step.floor for step in steps if step.floor is not None]
    floor_ms = 1e3 * median(floors) if floors else None
    return KindReport(
        kind=kind,
        steps=round(len(steps) / rounds),
        rows=mean(step.rows for step in steps),
        step_ms=step_ms,
        bare_ms=1e3 * median(beside for _, beside in pairs),
        ratio=median(step / beside for step, beside in pairs),
        floor_ms=floor_ms,
        floor_ratio=None if floor_ms is None else step_ms / floor_ms,
    )


def _bare_seconds(steps: Sequence[StepTimes]) -> float:
    timed_ones = [step.bare for step in steps if step.bare is not None]
    return len(steps) * mean(timed_ones)
