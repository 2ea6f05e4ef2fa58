"""``dllmx bench decode`` and ``bench step``: what each policy costs besides its forwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from statistics import mean, median
from typing import Any

import torch

from dllmx.bench.floors import Machine
from dllmx.bench.forced import forced_session, refuse_guidance
from dllmx.bench.memory import LiveStorage
from dllmx.bench.steps import FULL, BareForwards, KindReport, Round, kind_reports, paired_round
from dllmx.bench.timing import decision_share
from dllmx.config.schema import RunConfig
from dllmx.decode.session import Session
from dllmx.models.model import Model

POLICIES = ("baseline", "parallel", "fast-dllm", "entropycache", "archer", "polestar")
MOST_ROUNDS = 5
PEAK_STEPS = 6
"""Steps in which a decode reaches its peak: its first is a full one."""

PAIRED_FULL = 4
"""The first so many full steps of a decode are paired with a bare forward, then each so-manieth:
full steps are alike and by far the longest."""


@dataclass(frozen=True, slots=True)
class PolicyReport:
    """One policy. ``ratio``: the whole decode over its bare forwards, median over rounds.

    ``decision_share``: part of the decode spent in sampler, cache policy and commit rule;
    ``floor_ratio``: the whole decode over the machine's floor, None where that is unknown.
    """

    policy: str
    rounds: int
    steps: int
    tokens_per_step: float
    ratio: float
    decision_share: float
    step_ms: float
    floor_ratio: float | None
    peak_bytes: int | None
    kinds: list[KindReport]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Setting:
    """What is decoded: a random prompt of ``prompt_length``, ``tokens_per_step`` commits a step.

    ``most_steps``: the first so many steps of each decode only; None: all.
    """

    prompt_length: int
    tokens_per_step: float
    machine: Machine | None = None
    most_steps: int | None = None


def measure_policies(
    model: Model,
    configs: Mapping[str, RunConfig],
    setting: Setting,
    seconds: float,
    on_round: Callable[[str, int], None],
    peak: Callable[[Callable[[], Session]], int | None] = lambda start: None,
) -> list[PolicyReport]:
    """Decode with each policy in turn, round after round, for about ``seconds``.

    Every policy gets one round; a later one only where it still fits. ``on_round`` is told the
    policy and the number of its round; ``peak`` measures the memory of one decode. ConfigError for
    guidance.
    """
    for config in configs.values():
        refuse_guidance(config, "dllmx bench")
    deadline = time.monotonic() + seconds
    found: dict[str, list[Round]] = {policy: [] for policy in configs}
    bare: dict[str, BareForwards] = {}
    cost: dict[str, float] = dict.fromkeys(configs, 0.0)
    for number in range(1, MOST_ROUNDS + 1):
        for policy in sorted(configs, key=lambda name: cost[name]):  # the first time: as given
            if number > 1 and time.monotonic() + cost[policy] > deadline:
                continue
            start = time.monotonic()
            session = _session(model, configs[policy], setting)
            if policy not in bare:
                bare[policy] = BareForwards(_session(model, configs[policy], setting))
            found[policy].append(_round(session, bare[policy], setting))
            cost[policy] = time.monotonic() - start
            on_round(policy, number)
    reports = []
    for policy, config in configs.items():
        share = _share(model, config, setting, found[policy])
        start_session = _starter(model, config, setting)
        reports.append(_report(policy, config, found[policy], share, peak(start_session)))
    return reports


def decode_peak(start: Callable[[], Session]) -> int:
    """Most bytes that the first steps of a decode hold at a time, weights included."""
    session = start()
    model = session.model
    if model.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(model.device)
        _take_steps(session)
        return torch.cuda.max_memory_allocated(model.device)
    with LiveStorage([]) as live:
        _take_steps(start())
    return live.peak + sum(tensor.nbytes for tensor in model.weights.tensors())


def _take_steps(session: Session) -> None:
    for _ in range(PEAK_STEPS):
        session.step()


def _session(model: Model, config: RunConfig, setting: Setting) -> Session:
    return forced_session(model, config, setting.prompt_length, setting.tokens_per_step)


def _starter(model: Model, config: RunConfig, setting: Setting) -> Callable[[], Session]:
    return lambda: _session(model, config, setting)


def _round(session: Session, bare: BareForwards, setting: Setting) -> Round:
    pair = _always if setting.most_steps is not None else _sometimes
    return paired_round(session, bare, pair, setting.machine, setting.most_steps)


def _always(kind: str, before: int) -> bool:
    return True


def _sometimes(kind: str, before: int) -> bool:
    return kind != FULL or before < PAIRED_FULL or before % PAIRED_FULL == 0


def _share(model: Model, config: RunConfig, setting: Setting, rounds: list[Round]) -> float:
    watched = [done.decisions / done.seconds for done in rounds if done.decisions is not None]
    return median(watched) if watched else decision_share(_session(model, config, setting))


def _report(
    policy: str,
    config: RunConfig,
    rounds: list[Round],
    share: float,
    peak_bytes: int | None,
) -> PolicyReport:
    steps = [step for done in rounds for step in done.steps]
    floors = [step.floor for step in steps if step.floor is not None]
    count = len(rounds[0].steps)
    return PolicyReport(
        policy=policy,
        rounds=len(rounds),
        steps=count,
        tokens_per_step=config.sampler.gen_length / count,
        ratio=median(done.ratio for done in rounds),
        decision_share=share,
        step_ms=1e3 * median(step.step for step in steps),
        floor_ratio=mean(step.step for step in steps) / mean(floors) if floors else None,
        peak_bytes=peak_bytes,
        kinds=kind_reports(rounds),
    )
