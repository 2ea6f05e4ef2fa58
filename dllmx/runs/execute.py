"""Decode what is left of a run, sample by sample, and write its metrics when all is done."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

from dllmx.config.schema import RunConfig
from dllmx.errors import DllmxError, RunError
from dllmx.metrics.samples import SampleRecord
from dllmx.metrics.summary import RunMetrics, summarize
from dllmx.metrics.tokens import SpecialIds, count_tokens, eos_position
from dllmx.runs import describe, environment, files
from dllmx.runs.folder import RunFolder
from dllmx.runs.identity import sample_seed
from dllmx.runs.lock import locked
from dllmx.runs.models import obtain_model
from dllmx.runs.plan import PlannedRun, prompt_ids
from dllmx.runs.trace import trace_member
from dllmx.tasks.problem import Problem

if TYPE_CHECKING:
    from dllmx.decode.decoder import Decoded, Decoder, Request
    from dllmx.models.model import ModelShape
    from dllmx.models.tokenizer import Tokenizer

WARM_UP_STEPS = 2
"""Steps decoded and thrown away first, so that no sample's time holds the one-off costs."""

OUT_OF_MEMORY = "OutOfMemoryError"
OUT_OF_MEMORY_ADVICE = (
    "out of GPU memory. Try a smaller batch_size, hardware.dtype=bfloat16 or fewer model.layers."
)


class Observer(Protocol):
    """Who is told how a run goes on."""

    def loading(self, run: PlannedRun) -> None:
        """The model is about to be loaded."""

    def started(self, run: PlannedRun, records: Sequence[SampleRecord]) -> None:
        """Decoding starts; ``records`` were finished by earlier attempts."""

    def decoded(self, records: Sequence[SampleRecord]) -> None:
        """More samples are finished and on disk; ``records`` are all so far."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended: its metrics, and whether they were already there."""

    run: PlannedRun
    metrics: RunMetrics
    skipped: bool


@dataclass(frozen=True, slots=True)
class Bench:
    """What decoding needs once the model is there."""

    decoder: Decoder
    tokenizer: Tokenizer
    special: SpecialIds


class _WarmedUp(Exception):
    """Raised by the observer of the warm-up to end it."""


def execute(run: PlannedRun, observer: Observer) -> Outcome:
    """Finish ``run``: nothing when it is finished, what is left when an attempt ended early.

    Raises what the parts raise, after writing it to ``error.txt``; RunError when another process
    is at work in the folder.
    """
    with locked(run.folder.path):
        if run.config.overwrite:
            run.folder.clear()
        if run.folder.finished:
            return Outcome(run, read_metrics(run.folder), skipped=True)
        run.folder.error.unlink(missing_ok=True)
        try:
            metrics = _decode_all(run, observer)
        except Exception as error:
            files.write_atomically(run.folder.error, _error_text(error))
            if type(error).__name__ == OUT_OF_MEMORY:
                raise RunError(OUT_OF_MEMORY_ADVICE) from error
            raise
        return Outcome(run, metrics, skipped=False)


def _decode_all(run: PlannedRun, observer: Observer) -> RunMetrics:
    records = run.folder.recover_samples()
    files.write_atomically(run.folder.config, describe.config_yaml(run.config))
    environment.reset_peak_memory(run.config.hardware.device)
    observer.loading(run)
    bench = prepare_bench(run.config)
    describe.write_description(run, bench.decoder, bench.tokenizer, resumed_at=len(records))
    observer.started(run, records)
    _warm_up(bench, run)
    for batch in _batches(run, records):
        records = [*records, *_decode_batch(run, bench, batch)]
        observer.decoded(records)
    metrics = summarize(in_problem_order(records, run.problems))
    files.write_json(run.folder.metrics, metrics.to_dict())
    return metrics


def prepare_bench(config: RunConfig) -> Bench:
    """Load tokenizer and model (which takes longer, so it comes last) and build the decoder."""
    from dllmx.decode.decoder import Decoder
    from dllmx.models.loading import load_shape
    from dllmx.models.tokenizer import load_tokenizer

    environment.use_threads(config.hardware.threads)
    tokenizer = load_tokenizer(config.model, load_shape(config.model))
    model = obtain_model(config.model, config.hardware)
    return Bench(Decoder(model, config), tokenizer, special_ids(model.shape))


def special_ids(shape: ModelShape) -> SpecialIds:
    """The special ids of a model, as the metrics need them."""
    return SpecialIds(shape.eos_id, shape.eot_id, shape.mask_id)


def read_metrics(folder: RunFolder) -> RunMetrics:
    """The metrics of a finished run. RunError when they cannot be read."""
    return RunMetrics(**folder.read_json(folder.metrics))


def in_problem_order(
    records: Sequence[SampleRecord], problems: Sequence[Problem]
) -> list[SampleRecord]:
    """The records in the order of the problems, so that sums do not depend on the attempts."""
    place = {problem.id: index for index, problem in enumerate(problems)}
    return sorted(records, key=lambda record: place[record.id])


def _batches(
    run: PlannedRun, records: Sequence[SampleRecord]
) -> Iterator[tuple[int, list[Problem]]]:
    """Index and unfinished problems of every batch; its batch is a problem's in every attempt."""
    done = {record.id for record in records}
    size = run.config.batch_size
    for index, start in enumerate(range(0, len(run.problems), size)):
        left = [p for p in run.problems[start : start + size] if p.id not in done]
        if left:
            yield index, left


def _decode_batch(
    run: PlannedRun, bench: Bench, batch: tuple[int, list[Problem]]
) -> list[SampleRecord]:
    index, problems = batch
    decoded = bench.decoder.decode(_requests(run.config.seed, problems, bench.tokenizer))
    trace_ends = _write_traces(run, decoded)
    shared = {
        "batch": index,
        "batch_size": len(problems),
        "peak_memory_bytes": environment.peak_memory_bytes(run.config.hardware.device),
    }
    records = [
        _record(run, bench, problem, answer, trace_end=end, **shared)
        for problem, answer, end in zip(problems, decoded, trace_ends, strict=True)
    ]
    run.folder.append(records)
    return records


def _requests(seed: int, problems: Sequence[Problem], tokenizer: Tokenizer) -> list[Request]:
    from dllmx.decode.decoder import Request

    return [Request(p.id, prompt_ids(p, tokenizer), sample_seed(seed, p.id)) for p in problems]


def _write_traces(run: PlannedRun, decoded: Sequence[Decoded]) -> list[int | None]:
    """Append the traces, when asked for, and return the length of the file after each."""
    if not run.config.trace:
        return [None] * len(decoded)
    return [
        files.append_synced(run.folder.trace, trace_member(d.id, d.prompt_ids, d.steps))
        for d in decoded
    ]


def _record(
    run: PlannedRun, bench: Bench, problem: Problem, decoded: Decoded, **shared: Any
) -> SampleRecord:
    text = bench.tokenizer.decode(decoded.output_ids)
    score = run.task.score(problem, text)
    counts = count_tokens(decoded.output_ids, bench.special)
    return SampleRecord(
        id=problem.id,
        prompt_ids=decoded.prompt_ids,
        output_ids=decoded.output_ids,
        text=text,
        answer=score.answer,
        correct=score.correct,
        reference=problem.reference,
        detail=score.detail,
        nfe=decoded.counters.nfe,
        counters={k: v for k, v in asdict(decoded.counters).items() if k != "last_full"},
        seconds=decoded.seconds,
        eos_position=eos_position(decoded.output_ids, bench.special),
        empty=not text.strip(),
        **asdict(counts),
        **shared,
    )


def _warm_up(bench: Bench, run: PlannedRun) -> None:
    """Take a few steps on the first problem and forget them."""
    steps = 0

    def stop_soon(*_: object) -> None:
        nonlocal steps
        steps += 1
        if steps >= WARM_UP_STEPS:
            raise _WarmedUp

    try:
        bench.decoder.decode(_requests(0, run.problems[:1], bench.tokenizer), on_step=stop_soon)
    except _WarmedUp:
        return


def _error_text(error: Exception) -> str:
    if isinstance(error, DllmxError):
        return f"{error}\n"
    return "".join(traceback.format_exception(error))
