"""What a decode costs besides the model: every step against the bare forward over its rows.

A decode is made once to learn which rows each step computes; then every step of a second decode
is timed next to the bare forward (layers and output head over the same rows and keys, nothing
decided) of the same step, so that both see the same machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from dllmx.config.schema import RunConfig
from dllmx.decode.batch import Request
from dllmx.decode.session import Session
from dllmx.engine.engine import Engine
from dllmx.engine.rows import RowSet, SlotSet
from dllmx.engine.trace import StepRecord
from dllmx.errors import ConfigError
from dllmx.models.model import Model

MODEL_OPERATIONS = (
    "aten::mm",
    "aten::addmm",
    "aten::bmm",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
)
"""Matrix products and attention; everything else counts as outside."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of one step of the decode and of its bare forward; ``rows`` computed."""

    rows: int
    full: bool
    step: float
    bare: float


@dataclass(frozen=True, slots=True)
class OverheadReport:
    """Ratios are medians over rounds of a decode's total over its bare forwards' total.

    The ratio of full or of partial steps is None where the decode has none, and all of them are
    where the cache policy works inside the forward, whose rows a bare one cannot repeat.
    ``decision_share``: part of the decode's time spent in sampler, cache policy and commit rule.

    ``outside_share``: part of the decode's time that is neither matrix product nor attention,
    as the profiler sees it. ``forward_outside_share``: the same for the bare forwards alone.
    """

    parameters: int
    prompt_length: int
    gen_length: int
    steps: int
    full_steps: int
    rounds: int
    ratio: float | None
    ratio_full_steps: float | None
    ratio_partial_steps: float | None
    decision_share: float
    outside_share: float
    forward_outside_share: float | None
    step_milliseconds: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def measure_overhead(
    model: Model,
    config: RunConfig,
    prompt_length: int,
    rounds: int,
    on_round: Callable[[int], None],
) -> OverheadReport:
    """Time ``rounds`` decodes of one random prompt; ``on_round`` is told the rounds done.

    Raises ConfigError for guidance, whose second forward a bare one does not have.
    """
    if config.sampler.guidance > 0:
        raise ConfigError("bench overhead times one forward a step: set sampler.guidance=0.")
    request = _random_request(model, prompt_length)

    def session() -> Session:
        return Session(model, config, [request])

    records = _finish(session())
    needs = session().needs
    plain = not needs.layer_hook and needs.attention is None
    times: list[list[StepTimes]] = []
    for done in range(rounds if plain else 0):
        times.append(_paired_round(session(), session().engine, records))
        on_round(done + 1)
    decisions = [_decision_share(session()) for _ in range(rounds)]
    seconds = _seconds(model, lambda: _finish(session()))
    return OverheadReport(
        parameters=_parameter_count(model),
        prompt_length=prompt_length,
        gen_length=config.sampler.gen_length,
        steps=len(records),
        full_steps=sum(record.full for record in records),
        rounds=rounds,
        ratio=median(_ratio(found) for found in times) if plain else None,
        ratio_full_steps=_ratio_where(times, full=True) if plain else None,
        ratio_partial_steps=_ratio_where(times, full=False) if plain else None,
        decision_share=median(decisions),
        outside_share=_outside_share(lambda: _finish(session()), model),
        forward_outside_share=(
            _outside_share(lambda: _replay(session().engine, records), model) if plain else None
        ),
        step_milliseconds=1000 * seconds / len(records),
    )


def _random_request(model: Model, prompt_length: int) -> Request:
    generator = torch.Generator().manual_seed(0)
    usual = min(model.shape.mask_id, model.shape.eos_id)
    ids = torch.randint(0, usual, (prompt_length,), generator=generator)
    return Request("bench", ids.tolist(), seed=0)


def _finish(session: Session) -> list[StepRecord]:
    while session.step():
        pass
    return session.sequences[0].records


def _replay(engine: Engine, records: Sequence[StepRecord]) -> None:
    for record in records:
        _bare_forward(engine, record)


@torch.inference_mode()
def _bare_forward(engine: Engine, record: StepRecord) -> None:
    device = engine.model.device
    width = engine.canvas.shape[1]
    if record.row_positions is None:
        rows = RowSet.of_span(0, width, 1, device)
    else:
        rows = RowSet.of_columns([torch.tensor(record.row_positions)], device)
    hidden = engine.forward(SlotSet((0,)), rows)
    engine.model.head_logits(hidden[0, -record.predicted :])


def _paired_round(
    session: Session, engine: Engine, records: Sequence[StepRecord]
) -> list[StepTimes]:
    """Every step of one decode beside its bare forward, the order of the two alternating.

    ``engine`` stays on the starting canvas: the values of its tokens do not change its cost.
    """
    model, found = session.model, []
    for i, record in enumerate(records):
        if i % 2:
            bare = _seconds(model, lambda r=record: _bare_forward(engine, r))  # type: ignore[misc]
            step = _seconds(model, session.step)
        else:
            step = _seconds(model, session.step)
            bare = _seconds(model, lambda r=record: _bare_forward(engine, r))  # type: ignore[misc]
        found.append(StepTimes(record.rows, record.full, step, bare))
    return found


def _decision_share(session: Session) -> float:
    """Share of one decode that its sampler, cache policy and commit rule take."""
    spent, parts = [0.0], session.parts[0]
    for part, calls in (
        (parts.sampler, ("next_block",)),
        (parts.cache, ("enter_block", "plan", "on_layer", "publish", "after")),
        (parts.commit, ("select",)),
    ):
        for call in calls:
            setattr(part, call, _timed(session.model, getattr(part, call), spent))
    total = _seconds(session.model, lambda: _finish(session))
    return spent[0] / total


def _timed(model: Model, call: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    """``call``, whose time is added to ``spent``."""

    def timed(*arguments: Any) -> Any:
        _synchronise(model)
        start = time.perf_counter()
        result = call(*arguments)
        _synchronise(model)
        spent[0] += time.perf_counter() - start
        return result

    return timed


def _seconds(model: Model, work: Callable[[], object]) -> float:
    _synchronise(model)
    start = time.perf_counter()
    work()
    _synchronise(model)
    return time.perf_counter() - start


def _synchronise(model: Model) -> None:
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)


def _ratio(found: Sequence[StepTimes]) -> float:
    return sum(times.step for times in found) / sum(times.bare for times in found)


def _ratio_where(rounds: Sequence[Sequence[StepTimes]], full: bool) -> float | None:
    chosen = [[times for times in found if times.full == full] for found in rounds]
    return median(_ratio(found) for found in chosen) if chosen[0] else None


def _outside_share(work: Callable[[], object], model: Model) -> float:
    """Share of the profiled time that is spent in no matrix product and no attention."""
    cuda = model.device.type == "cuda"
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if cuda else [])
    with profile(activities=activities) as recorded:
        seconds = _seconds(model, work)
    inside = sum(
        (event.self_device_time_total if cuda else event.self_cpu_time_total)
        for event in recorded.key_averages()
        if event.key in MODEL_OPERATIONS
    )
    return 1 - inside / 1e6 / seconds


def _parameter_count(model: Model) -> int:
    weights = model.weights
    count = weights.embed.numel() + weights.final_norm.numel()
    count += 0 if model.shape.tied else weights.head.numel()
    for layer in weights.layers:
        tensors = (getattr(layer, name) for name in layer.__dataclass_fields__)
        count += sum(tensor.numel() for tensor in tensors if tensor is not None)
    return count
