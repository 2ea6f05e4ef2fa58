"""Traces on disk: gzip members of one JSON line each, so that a cut file stays readable."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dllmx.errors import RunError

if TYPE_CHECKING:
    from dllmx.engine.trace import StepRecord


def step_to_json(step: StepRecord) -> dict[str, Any]:
    """A step as JSON-able values: commit pairs, remask, rows (a count, or positions), full, ..."""
    return {
        "commit": [[position, token] for position, token in step.commit],
        "remask": step.remask,
        "rows": step.rows if step.row_positions is None else step.row_positions,
        "full": step.full,
        "confidence": step.confidence,
        "block": list(step.block),
        "reason": step.reason,
        "forced": step.forced,
        "filled": step.filled,
        "note": step.note,
    }


def trace_member(sample_id: str, prompt_ids: list[int], steps: list[StepRecord]) -> bytes:
    """One sample's trace as one gzip member; equal decodes give equal bytes."""
    entry = {
        "id": sample_id,
        "prompt_ids": prompt_ids,
        "steps": [step_to_json(step) for step in steps],
    }
    line = json.dumps(entry, ensure_ascii=False, separators=(",", ":")) + "\n"
    return gzip.compress(line.encode(), mtime=0)


def read_trace(path: Path) -> Iterator[dict[str, Any]]:
    """The traced samples of a run, in the order in which they finished."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as stream:
            for line in stream:
                yield json.loads(line)
    except (OSError, EOFError, ValueError) as error:
        raise RunError(f"cannot read the trace {path}: {error}") from None
