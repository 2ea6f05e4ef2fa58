"""Decodes that commit on a fixed schedule, so that speed is compared at equal tokens a step.

Random weights are sure of nothing: a threshold would commit one token a step for ever, and a
trigger that waits for certainty or for several commits at once would never fire, or always. Here
the commit rule is asked as in any decode, since its time counts, but what is committed follows
the schedule, and so do the entropies that the cache policy sees.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from dllmx.config.schema import RunConfig
from dllmx.decode.batch import Request
from dllmx.decode.session import Session
from dllmx.engine.interface import Commit, CommitRule, Prediction, View
from dllmx.errors import ConfigError
from dllmx.models.model import Model

UNCERTAIN_EVERY = 16
"""One step in so many is uncertain. EntropyCache's published recompute ratios (0.11 to 0.18 on
LLaDA) mean a full forward about every 25 steps; this is somewhat more."""

UNCERTAIN = 1e3
"""Entropy in nats that is above every threshold."""


class ForcedCommits(CommitRule):
    """Commits the surest eligible tokens, ``tokens_per_step`` of them on average.

    What a step lacked, because its block had no masks left, later ones make up. Nothing is
    re-masked or committed behind the block.
    """

    def __init__(self, rule: CommitRule, tokens_per_step: float) -> None:
        self.rule = rule
        self.needs = rule.needs
        self.tokens_per_step = tokens_per_step
        self.committed = 0

    def select(self, view: View, prediction: Prediction) -> Commit:
        """Ask the rule, then commit what the schedule says."""
        self.rule.select(view, prediction)
        if prediction.entropy is not None:
            uncertain = view.step % UNCERTAIN_EVERY == UNCERTAIN_EVERY - 1
            prediction.entropy.fill_(UNCERTAIN if uncertain else 0.0)
        due = int((view.step + 1) * self.tokens_per_step + 1e-9) - self.committed
        eligible = prediction.eligible.nonzero()[:, 0]
        count = min(max(due, 1), eligible.numel())
        self.committed += count
        surest = prediction.confidence[eligible].topk(count).indices
        return prediction.commit(eligible[surest])


def random_request(model: Model, prompt_length: int) -> Request:
    """A prompt of random ordinary tokens, the same every time."""
    generator = torch.Generator().manual_seed(0)
    usual = min(model.shape.mask_id, model.shape.eos_id)
    ids = torch.randint(0, usual, (prompt_length,), generator=generator)
    return Request("bench", ids.tolist(), seed=0)


def forced_session(
    model: Model, config: RunConfig, prompt_length: int, tokens_per_step: float
) -> Session:
    """A decode of a random prompt with ``config``'s parts on the fixed schedule."""
    session = Session(model, config, [random_request(model, prompt_length)])
    rule = ForcedCommits(session.parts[0].commit, tokens_per_step)
    session.parts[0] = replace(session.parts[0], commit=rule)
    return session


def refuse_guidance(config: RunConfig, command: str) -> None:
    """Raise ConfigError for guidance, whose second forward a bare one does not have."""
    if config.sampler.guidance > 0:
        raise ConfigError(f"{command} times one forward a step: set sampler.guidance=0.")
