"""The record of a decode, step by step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of one sequence; positions count from the start of its canvas.

    ``commit``: (position, token) pairs, ascending; ``remask``: positions, applied after the
    commits; ``confidence``: of each commit where the rule saw one. ``rows``: how many rows the
    forward computed (at layer 0 where a hook changes them); ``row_positions``: which, None for
    all. ``predicted``: rows whose logits were read. ``full``: every row was computed.
    ``reason``: why the plan was made; ``forced``: the engine committed the best token because the
    rule committed none; ``filled``: positions set to end-of-text by the sampler, without a
    prediction. ``block``: [lo, hi). ``note``: the plan's and the rule's own.
    """

    commit: list[tuple[int, int]]
    remask: list[int]
    confidence: list[float]
    rows: int
    row_positions: list[int] | None
    predicted: int
    full: bool
    reason: str
    forced: bool
    filled: list[int]
    block: tuple[int, int]
    note: dict[str, Any] = field(default_factory=dict)
