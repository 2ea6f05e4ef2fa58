"""What a decode costs besides the model: every step against the bare forward over its rows.

The decode is the one that the configuration describes, its own commit rule included; see
``dllmx.bench.steps`` for the bare forwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from torch.profiler import ProfilerActivity, profile

from dllmx.bench.forced import random_request, refuse_guidance
from dllmx.bench.steps import FULL, BareForwards, Round, RowWatch, StepRows, StepTimes, paired_round
from dllmx.bench.timing import decision_share, timed
from dllmx.config.schema import RunConfig
from dllmx.decode.session import Session
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
class OverheadReport:
    """Ratios are medians over rounds of a decode's total over its bare forwards' total.

    The ratio of full or of partial steps is None where the decode has none.
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
    ratio: float
    ratio_full_steps: float | None
    ratio_partial_steps: float | None
    decision_share: float
    outside_share: float
    forward_outside_share: float
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
    refuse_guidance(config, "bench overhead")
    request = random_request(model, prompt_length)

    def session() -> Session:
        return Session(model, config, [request])

    bare = BareForwards(session())
    computed = _computed_rows(session())
    found: list[Round] = []
    for done in range(rounds):
        found.append(paired_round(session(), bare))
        on_round(done + 1)
    steps = found[0].steps
    return OverheadReport(
        parameters=parameter_count(model),
        prompt_length=prompt_length,
        gen_length=config.sampler.gen_length,
        steps=len(steps),
        full_steps=sum(step.kind == FULL for step in steps),
        rounds=rounds,
        ratio=median(done.ratio for done in found),
        ratio_full_steps=_ratio_where(found, lambda step: step.kind == FULL),
        ratio_partial_steps=_ratio_where(found, lambda step: step.kind != FULL),
        decision_share=_share(found, session),
        outside_share=_outside_share(lambda: _finish(session()), model),
        forward_outside_share=_outside_share(lambda: _replay(bare, computed), model),
        step_milliseconds=1e3 * median(step.step for done in found for step in done.steps),
    )


def _computed_rows(session: Session) -> list[StepRows]:
    """The rows of every step of one decode."""
    watch, computed = RowWatch(session), []
    while (record := watch.step()) is not None:
        computed.append(watch.rows_of(record))
    return computed


def _finish(session: Session) -> None:
    while session.step():
        pass


def _replay(bare: BareForwards, computed: Sequence[StepRows]) -> None:
    for rows in computed:
        bare.prepare(rows)()


def _share(found: Sequence[Round], session: Callable[[], Session]) -> float:
    watched = [done.decisions / done.seconds for done in found if done.decisions is not None]
    return median(watched) if watched else decision_share(session())


def _ratio_where(found: Sequence[Round], chosen: Callable[[StepTimes], bool]) -> float | None:
    parts = [Round([step for step in done.steps if chosen(step)]) for done in found]
    return median(part.ratio for part in parts) if parts[0].steps else None


def _outside_share(work: Callable[[], object], model: Model) -> float:
    """Share of the profiled time that is spent in no matrix product and no attention."""
    cuda = model.device.type == "cuda"
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if cuda else [])
    with profile(activities=activities) as recorded:
        seconds, _ = timed(model, work)
    inside = sum(
        (event.self_device_time_total if cuda else event.self_cpu_time_total)
        for event in recorded.key_averages()
        if event.key in MODEL_OPERATIONS
    )
    return 1 - inside / 1e6 / seconds


def parameter_count(model: Model) -> int:
    """Numbers in all weights, tied ones once."""
    return sum(tensor.numel() for tensor in model.weights.tensors())
