"""The training loop of the bundled models."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from dllmx.errors import RunError
from dllmx.models.model import Model, ModelShape
from dllmx.training import data, evaluate, parameters, state
from dllmx.training.config import TrainConfig
from dllmx.training.optimizer import Optimizer
from dllmx.training.shapes import tiny_shape
from dllmx.training.state import Progress

EFFORT = {"tiny-math": 2.0, "tiny-lists": 1.0, "tiny-code": 1.0}
"""How much more of the batch a task takes than another with as many errors."""

SMALLEST_ERROR = 0.12
"""The share of a task never follows its errors below this."""

WATCH_SEED = 1
MOMENTS = "moments."


@dataclass(frozen=True, slots=True)
class Report:
    """What a caller hears after a step; ``accuracy`` by task at the last evaluation."""

    step: int
    steps: int
    loss: float
    rate: float
    seconds: float
    accuracy: Mapping[str, float]


OnProgress = Callable[[Report], None]


@dataclass
class Run:
    """A training run in memory."""

    config: TrainConfig
    shape: ModelShape
    weights: dict[str, Tensor]
    optimizer: Optimizer
    progress: Progress
    stream: data.Stream
    started: float = field(default_factory=time.monotonic)

    @property
    def model(self) -> Model:
        """The model over the weights being trained."""
        return parameters.as_model(self.shape, self.weights)

    @property
    def seconds(self) -> float:
        """Time spent in all sittings."""
        return self.progress.seconds + time.monotonic() - self.started


def train(config: TrainConfig, on_progress: OnProgress | None = None) -> Run:
    """Train to the end, taking up a saved state of the same run where there is one.

    Returns the finished run; its state is in ``config.folder``. RunError when the loss diverges.
    """
    torch.set_num_threads(config.threads)
    run = open_run(config)
    for step in range(run.progress.step, config.steps):
        loss = train_step(run, step)
        run.progress = replace(run.progress, step=step + 1)
        if (step + 1) % config.evaluate_every == 0 or step + 1 == config.steps:
            run.progress = set_mix(run)
        if (step + 1) % config.save_every == 0 or step + 1 == config.steps:
            save(run)
        if on_progress is not None:
            on_progress(_report(run, loss))
    return run


def open_run(config: TrainConfig) -> Run:
    """A run at the saved state of ``config.folder``, or at its beginning."""
    shape = tiny_shape(config.model)
    weights = parameters.initial_parameters(shape, config.seed)
    run = Run(
        config=config,
        shape=shape,
        weights=weights,
        optimizer=Optimizer(parameters.matrix_parts(shape), config.weight_decay),
        progress=Progress(0, 0.0, task_mix(dict.fromkeys(data.TASKS, 0.0))),
        stream=data.Stream.of(shape.family, config.seed, config.batch),
    )
    saved = state.load_state(config.folder, config)
    if saved is not None:
        _restore(run, *saved)
    return run


def train_step(run: Run, step: int) -> float:
    """One update; the mean cross-entropy over masked response tokens, in nats."""
    batch = run.stream.batch(step, run.progress.mix)
    # The fused attention of the CPU is slow in its backward pass at such short lengths.
    with sdpa_kernel(SDPBackend.MATH), torch.autocast("cpu", torch.bfloat16):
        logits = _logits(run.model, batch)
    loss = F.cross_entropy(logits.float(), batch.clean[batch.masked])
    if not torch.isfinite(loss):
        raise RunError(f"the loss is {loss.item()} at step {step}; lower rate={run.config.rate}.")
    loss.backward()
    torch.nn.utils.clip_grad_norm_(run.weights.values(), run.config.clip)
    run.optimizer.update(run.weights, step, run.config.rate_at(step))
    return loss.item()


def _logits(model: Model, batch: data.Batch) -> Tensor:
    """Logits [M, V] of the masked rows: the first canvases through a dual cache, then the rest."""
    count = len(batch.block)
    through_cache = model.forward_block_logits(
        batch.stored, batch.noisy[:count], batch.block, batch.visible[:count]
    )
    whole = model.forward_logits(batch.noisy[count:], batch.visible[count:])
    masked = batch.masked
    return torch.cat([through_cache[masked[:count]], whole[masked[count:]]])


def set_mix(run: Run) -> Progress:
    """Evaluate on training problems and give each task a share that grows with its errors."""
    config, model = run.config, run.model
    accuracy: dict[str, float] = {}
    for name, draw in data.draws_at(run.progress.step - 1).items():
        problems = evaluate.training_problems(name, draw, config.evaluate_problems, WATCH_SEED)
        accuracy[name] = evaluate.evaluate(model, name, problems).reached if problems else 0.0
    entry: dict[str, Any] = {"step": run.progress.step, "seconds": run.seconds, **accuracy}
    return replace(run.progress, mix=task_mix(accuracy), log=[*run.progress.log, entry])


def task_mix(accuracy: Mapping[str, float]) -> dict[str, float]:
    """Share of each task in the batches, from its accuracy."""
    wanted = {
        name: EFFORT[name] * max(1 - value, SMALLEST_ERROR) for name, value in accuracy.items()
    }
    return {name: value / sum(wanted.values()) for name, value in wanted.items()}


def save(run: Run) -> None:
    """Write the state of the run to its work folder."""
    moments = {MOMENTS + name: value for name, value in run.optimizer.moments.items()}
    progress = replace(run.progress, seconds=run.seconds)
    state.save_state(run.config.folder, run.config, progress, {**run.weights, **moments})


def _restore(run: Run, progress: Progress, tensors: Mapping[str, Tensor]) -> None:
    run.progress = progress
    with torch.no_grad():
        for name, value in run.weights.items():
            value.copy_(tensors[name])
    run.optimizer.moments = {
        name.removeprefix(MOMENTS): value
        for name, value in tensors.items()
        if name.startswith(MOMENTS)
    }


def _report(run: Run, loss: float) -> Report:
    last = run.progress.log[-1] if run.progress.log else {}
    accuracy = {name: last[name] for name in data.TASKS if name in last}
    step = run.progress.step
    rate = run.config.rate_at(step - 1)
    return Report(step, run.config.steps, loss, rate, run.seconds, accuracy)
