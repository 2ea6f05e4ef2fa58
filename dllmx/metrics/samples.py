"""The record of one decoded problem: one line of ``samples.jsonl``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class SampleRecord:
    """What is kept of one decoded problem. Every metric of a run derives from these records.

    ``seconds`` is this sample's equal share of the synchronised wall time of its batch, so that
    the sum over samples is the decode time of the run. ``counters`` are the engine's, by name.
    ``eos_position`` counts from the start of the response. ``trace_end`` is the length in bytes of
    the trace file once this sample's trace had been written; None without a trace.
    """

    id: str
    prompt_ids: list[int]
    output_ids: list[int]
    text: str
    answer: str | None
    correct: bool
    reference: Any
    nfe: int
    counters: dict[str, Any]
    seconds: float
    batch: int
    batch_size: int
    tokens_all: int
    tokens_non_eos: int
    tokens_after_stop: int
    eos_position: int | None
    empty: bool
    peak_memory_bytes: int
    trace_end: int | None = None
    detail: dict[str, Any] = field(default_factory=dict)

    def to_line(self) -> str:
        """One line of JSON, newline included."""
        return json.dumps(asdict(self), ensure_ascii=False, separators=(",", ":")) + "\n"


def sample_from_json(entry: Any) -> SampleRecord:
    """The record of one parsed line. ValueError when a field is missing or unknown."""
    names = {item.name for item in fields(SampleRecord)}
    if not isinstance(entry, dict) or set(entry) != names:
        raise ValueError("not a sample record")
    return SampleRecord(**entry)
