"""Wall time of work on the model's device, and the part of it that decisions take."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from dllmx.decode.session import Session
from dllmx.models.model import Model

T = TypeVar("T")

DECISIONS = (
    ("sampler", ("next_block",)),
    ("cache", ("enter_block", "plan", "on_layer", "publish", "after")),
    ("commit", ("select",)),
)
"""Calls of a session into its parts."""


def synchronise(model: Model) -> None:
    """Wait until the model's device has done what it was given."""
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)


def timed(model: Model, work: Callable[[], T]) -> tuple[float, T]:
    """Seconds that ``work`` takes, device included, and its result."""
    synchronise(model)
    start = time.perf_counter()
    result = work()
    synchronise(model)
    return time.perf_counter() - start, result


class DecisionClock:
    """Adds up what a session's sampler, cache policy and commit rule take: ``seconds``.

    On a GPU every call waits for the device, so that a step must not be timed at the same time.
    """

    def __init__(self, session: Session) -> None:
        self.seconds = 0.0
        self._model = session.model
        parts = session.parts[0]
        for name, calls in DECISIONS:
            part = getattr(parts, name)
            for call in calls:
                setattr(part, call, self._watched(getattr(part, call)))

    def _watched(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any) -> Any:
            seconds, result = timed(self._model, lambda: call(*arguments))
            self.seconds += seconds
            return result

        return watched


def decision_share(session: Session) -> float:
    """Part of one whole decode that its sampler, cache policy and commit rule take."""
    clock = DecisionClock(session)

    def finish() -> None:
        while session.step():
            pass

    total, _ = timed(session.model, finish)
    return clock.seconds / total
