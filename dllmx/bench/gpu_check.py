"""Everything that only a GPU can show, within a budget of time, as one JSON.

Three parts: every kernel against its twin; every policy's tokens on the device against those on
the CPU; speed and memory of every policy on random weights of LLaDA-8B's shape. A part that fails
does not stop the next, and what no longer fits into the time is named with the reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from dllmx.bench.decoding import POLICIES
from dllmx.bench.floors import machine_of
from dllmx.bench.forced import forced_session
from dllmx.bench.kernel_runs import run_case
from dllmx.bench.kernels import SMALL, Inputs, Sizes, written_cases
from dllmx.bench.steps import BareForwards, Round, kind_reports, paired_round
from dllmx.config import parts
from dllmx.config.compose import compose, validate
from dllmx.config.schema import RunConfig
from dllmx.decode.decoder import Decoder, Request
from dllmx.models.loading import load_model
from dllmx.models.model import Model
from dllmx.models.tokenizer import load_tokenizer
from dllmx.runs import environment

TINY_MODELS = ("tiny-llada", "tiny-dream")
KERNELS = ("triton", "torch")
"""Values of hardware.kernels, the fastest first."""

CHEAP_FIRST = tuple(reversed(POLICIES))
"""Policies with a cache take less time than those without."""

SHARES = {"kernels": 0.2, "tokens": 0.25, "speed": 1.0}
"""Largest part of the time that is left when a part begins."""

PAIRED_STEPS = (0, 2, 5)
"""Of each kind, the steps of a decode that are followed by their bare forward."""

WARM_TOKENS = 96
"""Of the decode that is made for memory and compiling: three blocks have steps of all kinds."""

Notice = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """What is checked. ``hardware``: the profile; ``kernels``: values of
    hardware.kernels; ``large``: overrides of the model whose speed is taken; ``rates``: tokens a
    step; ``tiny``: overrides of the decodes whose tokens are compared, ``prompts`` of them.
    """

    hardware: str
    kernels: tuple[str, ...]
    sizes: Sizes
    large: tuple[str, ...]
    prompt_length: int
    rates: tuple[float, ...]
    tiny: tuple[str, ...]
    prompts: int
    seconds: float
    dry_run: bool = False


def gpu_settings(hardware: str, seconds: float) -> Settings:
    """The check itself, on a CUDA device."""
    large = ("model=llada", "model.weights=random", "task.gen_length=256", "task.block_length=32")
    return Settings(
        hardware, KERNELS, Sizes(), large, 1024, (3.67, 2.0, 1.0), (), 2, seconds
    )  # fmt: skip


def dry_settings(seconds: float) -> Settings:
    """The same on the CPU, so small that only the code is tested."""
    large = (
        "model=random-100m", "model.layers=1", "model.shape.d_model=96",
        "model.shape.mlp_hidden_size=64", "task.gen_length=8", "task.block_length=4",
    )  # fmt: skip
    tiny = ("task.gen_length=4", "task.block_length=2")
    return Settings(
        "cpu", KERNELS, SMALL, large, 12, (3.67, 2.0), tiny, 1, seconds, True
    )  # fmt: skip


@dataclass
class Part:
    """What a part found; ``skipped``: items that no longer fitted, with the reason."""

    results: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[dict[str, str]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @contextmanager
    def noting(self, item: str) -> Iterator[None]:
        """Whatever the work on ``item`` raises becomes a failure: the next may still work."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  a compiler or a driver can fail in any way
            self.failures.append(f"{item}: {type(error).__name__}: {error}")


@dataclass(frozen=True, slots=True)
class Budget:
    """Time until ``deadline`` of the monotonic clock, ``seconds`` in all."""

    seconds: float
    deadline: float

    @staticmethod
    def of(seconds: float) -> Budget:
        """A budget that starts now."""
        return Budget(seconds, time.monotonic() + seconds)

    @property
    def left(self) -> float:
        """Seconds until the deadline; not below 0."""
        return max(self.deadline - time.monotonic(), 0.0)

    def fits(self, part: Part, item: str, estimate: float = 0.0) -> bool:
        """Whether ``estimate`` seconds are left; where not, ``part`` notes ``item`` as skipped."""
        if self.left > estimate:
            return True
        reason = f"{self.left:.0f} s of the part's {self.seconds:.0f} s were left"
        if estimate:
            reason += f", about {estimate:.0f} s were needed"
        part.skipped.append({"item": item, "reason": reason})
        return False


def run_gpu_check(
    settings: Settings, write: Callable[[dict[str, Any]], None], notice: Notice
) -> dict[str, Any]:
    """Run all parts; ``write`` gets the report after each of them, so that none is lost."""
    whole = Budget.of(settings.seconds)
    report = _header(settings)
    for name, work in (
        ("kernels", _check_kernels),
        ("tokens", _check_tokens),
        ("speed", _measure_speed),
    ):
        part, budget = Part(), Budget.of(whole.left * SHARES[name])
        notice(f"{name}: at most {budget.seconds:.0f} s")
        with part.noting("all of it"):
            work(settings, budget, part, notice)
        report["parts"][name] = {
            "budget_seconds": budget.seconds,
            "seconds": budget.seconds - budget.left,
            "results": part.results,
            "skipped": part.skipped,
            "failures": part.failures,
        }
        report["failures"] += [f"{name}: {failure}" for failure in part.failures]
        report["seconds"] = settings.seconds - whole.left
        write(report)
    return report


def _header(settings: Settings) -> dict[str, Any]:
    config = _first_config(settings)
    machine = machine_of(config.hardware)
    return {
        "format": 1,
        "dry_run": settings.dry_run,
        "graphs": False,
        "minutes": settings.seconds / 60,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "machine": environment.describe_machine(config.hardware.device),
        "git": environment.git_state(),
        "profile": config.hardware.name,
        "kernels": list(settings.kernels),
        "peak_operations": None if machine is None else machine.operations,
        "peak_bytes_a_second": None if machine is None else machine.bytes,
        "parts": {},
        "failures": [],
    }


def _config(hardware: str, kernels: str, policy: str, overrides: tuple[str, ...]) -> RunConfig:
    given = [f"hardware={hardware}", f"hardware.kernels={kernels}", f"policy={policy}"]
    return validate(compose([*given, "logger=none", *overrides]))


def _first_config(settings: Settings) -> RunConfig:
    return _config(settings.hardware, settings.kernels[0], "baseline", settings.large)


def _check_kernels(settings: Settings, budget: Budget, part: Part, notice: Notice) -> None:
    """Agreement of every kernel with its twin; times too on a GPU."""
    config = _first_config(settings)
    device = torch.device(config.hardware.device)
    dtype = torch.float32 if settings.dry_run else torch.bfloat16
    inputs = Inputs(settings.sizes, device, dtype)
    for case in written_cases():
        if not budget.fits(part, case.name):
            continue
        found = run_case(case, inputs, machine_of(config.hardware))
        notice(f"  {case.name}: {'agrees' if found.agrees else 'DIFFERS'}")
        part.results.append(found.to_dict())
        if not found.agrees:
            part.failures.append(f"{case.name}: {found.failure or f'error {found.error:.1e}'}")


def _check_tokens(settings: Settings, budget: Budget, part: Part, notice: Notice) -> None:
    """Every policy decodes the same tokens on the device as on the CPU, in float32."""
    slowest = 0.0
    for name in TINY_MODELS:
        expected: dict[str, list[list[int]]] = {}
        for kernels in settings.kernels:
            for policy in POLICIES:
                item = f"{name}, {policy}, kernels={kernels}"
                if not budget.fits(part, item, slowest):
                    continue
                start = time.monotonic()
                overrides = (f"model={name}", "hardware.dtype=float32", *settings.tiny)
                with part.noting(item):
                    config = _config(settings.hardware, kernels, policy, overrides)
                    if policy not in expected:
                        host = _config("cpu", "torch", policy, overrides)
                        expected[policy] = _tokens(host, settings.prompts)
                    found = _tokens(config, settings.prompts)
                    _compare_tokens(item, found, expected[policy], part)
                slowest = max(slowest, time.monotonic() - start)
        notice(f"  {name}: {len(part.failures)} differences so far")


def _compare_tokens(
    item: str, found: list[list[int]], expected: list[list[int]], part: Part
) -> None:
    differing = sum(
        mine != other
        for outputs, right in zip(found, expected, strict=True)
        for mine, other in zip(outputs, right, strict=True)
    )
    part.results.append({"item": item, "prompts": len(found), "differing_tokens": differing})
    if differing:
        part.failures.append(f"{item}: {differing} tokens differ from those on the CPU")


def _tokens(config: RunConfig, prompts: int) -> list[list[int]]:
    """Outputs of the first problems of the task that the configuration names."""
    model = load_model(config.model, config.hardware)
    tokenizer = load_tokenizer(config.model, model.shape)
    problems = parts.load("task", config.task.name).Task(config.task).problems()[:prompts]
    decoder = Decoder(model, config)
    return [
        decoder.decode([Request(problem.id, tokenizer.encode_prompt(problem.prompt), 0)])[
            0
        ].output_ids
        for problem in problems
    ]


def _measure_speed(settings: Settings, budget: Budget, part: Part, notice: Notice) -> None:
    """Steps, tokens a second and memory of every policy at every rate on the large model."""
    first = _first_config(settings)
    start = time.monotonic()
    model = load_model(first.model, first.hardware)
    part.results.append({"item": "loading", "seconds": time.monotonic() - start})
    taken: dict[str, float] = {}
    for kernels, rate, policy in _runs(settings):
        item = f"{policy}, {rate:g} tokens a step, kernels={kernels}"
        estimate = taken.get(policy, 0.0) * settings.rates[0] / rate
        if not budget.fits(part, item, estimate):
            continue
        start = time.monotonic()
        with part.noting(item):
            config = _config(settings.hardware, kernels, policy, settings.large)
            found = _speed(model, config, settings.prompt_length, rate)
            taken[policy] = (time.monotonic() - start) * rate / settings.rates[0]
            part.results.append({"item": item, "policy": policy, "kernels": kernels} | found)
            notice(f"  {item}: {found['tokens_per_second']:.1f} tokens a second")


def _runs(settings: Settings) -> Iterator[tuple[str, float, str]]:
    """All rates with the first kernels, then the first rate with each of the others."""
    for rate in settings.rates:
        for policy in CHEAP_FIRST:
            yield settings.kernels[0], rate, policy
    for kernels in settings.kernels[1:]:
        for policy in CHEAP_FIRST:
            yield kernels, settings.rates[0], policy


def _speed(model: Model, config: RunConfig, prompt_length: int, rate: float) -> dict[str, Any]:
    """A decode's beginning for the memory, which also compiles kernels, and one that is timed."""
    device = config.hardware.device
    environment.reset_peak_memory(device)
    session = forced_session(model, config, prompt_length, rate)
    for _ in range(round(WARM_TOKENS / rate)):
        session.step()
    peak = environment.peak_memory_bytes(device)
    del session
    bare = BareForwards(forced_session(model, config, prompt_length, rate))
    done = paired_round(
        forced_session(model, config, prompt_length, rate),
        bare,
        _paired,
        machine_of(config.hardware),
    )
    return _speed_report(done, config.sampler.gen_length, rate, peak)


def _paired(kind: str, before: int) -> bool:
    return before in PAIRED_STEPS


def _speed_report(done: Round, tokens: int, rate: float, peak: int) -> dict[str, Any]:
    floors = [step.floor for step in done.steps if step.floor is not None]
    return {
        "tokens_per_step": rate,
        "tokens_per_forward": tokens / len(done.steps),
        "steps": len(done.steps),
        "seconds": done.seconds,
        "tokens_per_second": tokens / done.seconds,
        "step_ms": 1e3 * done.seconds / len(done.steps),
        "floor_ratio": done.seconds / sum(floors) if floors else None,
        "decode_over_bare": done.ratio,
        "peak_bytes": peak,
        "kinds": [kind.to_dict() for kind in kind_reports([done])],
    }
