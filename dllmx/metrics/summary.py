"""The metrics of a run, computed from its sample records and from nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dllmx.metrics.intervals import wilson_interval
from dllmx.metrics.samples import SampleRecord

TIMING_FIELDS = ("seconds", "tps", "peak_memory_bytes")
"""Metrics that may differ between two runs of the same thing; all others must be equal."""


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """Metrics of one run.

    ``tpf``: tokens_non_eos / NFE; ``tpf_all``: tokens_all / NFE; ``tps``: tokens_non_eos / seconds
    of the decode loop; ``recompute_ratio``: rows x layers computed / rows x layers that full
    recomputation would have computed over the same steps. ``nfe`` sums over samples. A ratio whose
    denominator is zero is None.
    """

    samples: int
    correct: int
    accuracy: float | None
    accuracy_low: float
    accuracy_high: float
    nfe: int
    nfe_mean: float | None
    tokens_all: int
    tokens_non_eos: int
    tokens_after_stop: int
    tpf: float | None
    tpf_all: float | None
    tps: float | None
    seconds: float
    recompute_ratio: float | None
    peak_memory_bytes: int
    empty_answers: int
    counters: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        """The metrics as JSON-able values."""
        return asdict(self)


def ratio(numerator: float, denominator: float) -> float | None:
    """``numerator / denominator``; None where the denominator is zero."""
    return numerator / denominator if denominator else None


def summarize(records: Sequence[SampleRecord]) -> RunMetrics:
    """Metrics of a run from all its sample records."""
    interval = wilson_interval(correct := sum(r.correct for r in records), len(records))
    nfe, seconds = sum(r.nfe for r in records), sum(r.seconds for r in records)
    tokens_all = sum(r.tokens_all for r in records)
    tokens_non_eos = sum(r.tokens_non_eos for r in records)
    counters = sum_counters(r.counters for r in records)
    return RunMetrics(
        samples=len(records),
        correct=correct,
        accuracy=ratio(correct, len(records)),
        accuracy_low=interval.low,
        accuracy_high=interval.high,
        nfe=nfe,
        nfe_mean=ratio(nfe, len(records)),
        tokens_all=tokens_all,
        tokens_non_eos=tokens_non_eos,
        tokens_after_stop=sum(r.tokens_after_stop for r in records),
        tpf=ratio(tokens_non_eos, nfe),
        tpf_all=ratio(tokens_all, nfe),
        tps=ratio(tokens_non_eos, seconds),
        seconds=seconds,
        recompute_ratio=ratio(counters.get("row_layers", 0), counters.get("row_layers_full", 0)),
        peak_memory_bytes=max((r.peak_memory_bytes for r in records), default=0),
        empty_answers=sum(r.empty for r in records),
        counters=counters,
    )


def sum_counters(counters: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Sum of each integer counter over samples; lists, such as refresh gaps, stay per sample."""
    totals: dict[str, int] = {}
    for entry in counters:
        for name, value in entry.items():
            if isinstance(value, int):
                totals[name] = totals.get(name, 0) + value
    return totals
