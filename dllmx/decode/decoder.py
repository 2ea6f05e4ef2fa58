"""Decode batches of prompts with one model and one configuration."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from dllmx.config.schema import RunConfig
from dllmx.decode.batch import Request
from dllmx.decode.session import Session
from dllmx.engine.counters import Counters
from dllmx.engine.trace import StepRecord
from dllmx.models.model import Model

__all__ = ["Decoded", "Decoder", "Request"]


@dataclass(frozen=True, slots=True)
class Decoded:
    """A finished decode. ``output_ids``: the response; masks remain only after an early stop.

    ``seconds``: wall time of the batch's decode loop, device-synchronised, divided by its size.
    """

    id: str
    prompt_ids: list[int]
    output_ids: list[int]
    steps: list[StepRecord]
    counters: Counters
    seconds: float


class Decoder:
    """Decodes with ``config``'s sampler, cache policy and commit rule."""

    def __init__(self, model: Model, config: RunConfig) -> None:
        self.model = model
        self.config = config

    def decode(
        self,
        requests: Sequence[Request],
        on_step: Callable[[Session], None] | None = None,
    ) -> list[Decoded]:
        """Decode one batch; ``on_step`` sees the session after every step.

        Raises RunError for NaN logits or a part that breaks its contract.
        """
        session = Session(self.model, self.config, requests)
        start = self._now()
        while session.step():
            if on_step is not None:
                on_step(session)
        seconds = (self._now() - start) / len(requests)
        return [
            Decoded(
                id=state.id,
                prompt_ids=state.tokens[: state.prompt_length].tolist(),
                output_ids=state.tokens[state.prompt_length :].tolist(),
                steps=state.records,
                counters=state.counters,
                seconds=seconds,
            )
            for state in session.sequences
        ]

    def _now(self) -> float:
        if self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)
        return time.perf_counter()
