"""Two runs held against each other, problem by problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dllmx.errors import ConfigError
from dllmx.metrics.intervals import (
    Interval,
    PairedCounts,
    mcnemar_exact,
    paired_difference_interval,
)
from dllmx.metrics.samples import SampleRecord
from dllmx.metrics.summary import RunMetrics, summarize
from dllmx.runs.folder import RunFolder
from dllmx.runs.identity import PLACES

Pair = tuple[SampleRecord, SampleRecord]

ABSENT = "-"
MACHINE_KEYS = ("dllmx", "packages", "python", "cpu", "threads", "device", "gpu")


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """The first problem with different output, and the first position at which it differs.

    ``index`` counts within the response; a token is None where that response has ended.
    """

    first: SampleRecord
    second: SampleRecord
    index: int
    first_token: int | None
    second_token: int | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two runs say about the problems that both answered.

    ``difference``: interval of (second accuracy - first); ``p_value``: exact McNemar test;
    ``settings``: (key, first value, second value) where these differ; ``unpaired``: answers
    without a counterpart; ``identical``: problems with the same output ids in both.
    """

    counts: PairedCounts
    first: RunMetrics
    second: RunMetrics
    difference: Interval
    p_value: float
    identical: int
    unpaired: int
    settings: list[tuple[str, str, str]]
    first_difference: FirstDifference | None


def compare_runs(first: RunFolder, second: RunFolder) -> Comparison:
    """Compare the samples of two run folders, finished or not.

    Raises ConfigError when they share no problem.
    """
    samples = (first.read_samples(), second.read_samples())
    pairs = pair_samples(*samples)
    if not pairs:
        raise ConfigError(
            f"{first.path.name} and {second.path.name} share no problem with the same prompt."
        )
    counts = count_pairs(pairs)
    return Comparison(
        counts=counts,
        first=summarize([a for a, _ in pairs]),
        second=summarize([b for _, b in pairs]),
        difference=paired_difference_interval(counts),
        p_value=mcnemar_exact(counts.only_first, counts.only_second),
        identical=sum(a.output_ids == b.output_ids for a, b in pairs),
        unpaired=sum(map(len, samples)) - 2 * len(pairs),
        settings=differing_settings(settings_of(first), settings_of(second)),
        first_difference=find_first_difference(pairs),
    )


def pair_samples(first: Sequence[SampleRecord], second: Sequence[SampleRecord]) -> list[Pair]:
    """The samples of both runs with equal id and prompt, in the order of the first."""
    others = {(record.id, tuple(record.prompt_ids)): record for record in second}
    keyed = ((record, others.get((record.id, tuple(record.prompt_ids)))) for record in first)
    return [(a, b) for a, b in keyed if b is not None]


def count_pairs(pairs: Sequence[Pair]) -> PairedCounts:
    """How often both, one or none of the two runs is right."""
    outcomes = [(a.correct, b.correct) for a, b in pairs]
    return PairedCounts(
        both=outcomes.count((True, True)),
        only_first=outcomes.count((True, False)),
        only_second=outcomes.count((False, True)),
        neither=outcomes.count((False, False)),
    )


def find_first_difference(pairs: Sequence[Pair]) -> FirstDifference | None:
    """Where the outputs of the two runs part for the first time; None: nowhere."""
    for first, second in pairs:
        a, b = first.output_ids, second.output_ids
        if a != b:
            shared = range(min(len(a), len(b)))
            index = next((i for i in shared if a[i] != b[i]), len(shared))
            return FirstDifference(first, second, index, _at(a, index), _at(b, index))
    return None


def settings_of(folder: RunFolder) -> dict[str, str]:
    """What a run was made with, flattened: its configuration, seed, hash and last machine."""
    kept = {key: value for key, value in folder.read_config().items() if key not in PLACES}
    machine = folder.read_json(folder.description)["attempts"][-1]["machine"]
    return flatten({**kept, "machine": {key: machine.get(key) for key in MACHINE_KEYS}})


def differing_settings(
    first: Mapping[str, str], second: Mapping[str, str]
) -> list[tuple[str, str, str]]:
    """(key, first value, second value) of every setting that differs, in order of the keys."""
    keys = [*first, *(key for key in second if key not in first)]
    rows = [(key, first.get(key, ABSENT), second.get(key, ABSENT)) for key in keys]
    return [row for row in rows if row[1] != row[2]]


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested mappings as one, with dotted keys and values as text."""
    flat: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = str(value)
    return flat


def _at(ids: Sequence[int], index: int) -> int | None:
    return ids[index] if index < len(ids) else None
