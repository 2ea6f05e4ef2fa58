"""What a batch starts from: requests, the padded canvas, per-sequence state and parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dllmx.config import parts as part_modules
from dllmx.config.schema import RunConfig
from dllmx.engine.interface import CachePolicy, CommitRule, Sampler
from dllmx.engine.sequence import SequenceState
from dllmx.errors import ConfigError
from dllmx.models.model import Model


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to decode. ``seed`` starts its random generators, whatever its batch."""

    id: str
    prompt_ids: list[int]
    seed: int


@dataclass(frozen=True, slots=True)
class Parts:
    """The three parts of one sequence, built fresh so that no state outlives a decode."""

    sampler: Sampler
    cache: CachePolicy
    commit: CommitRule


@dataclass(frozen=True, slots=True)
class Batch:
    """Left-padded token ids ``host`` [S, W] on the CPU and ``canvas``, the device's copy of it.

    On the CPU both are one tensor. With guidance, slots B..2B-1 repeat the sequences with the
    tokens ``given`` [B, W] by the prompt masked. ``noise``: a generator on the model's device for
    each sequence.
    """

    host: Tensor
    canvas: Tensor
    given: Tensor
    padding: list[int]
    sequences: list[SequenceState]
    noise: list[torch.Generator]


def build_parts(config: RunConfig) -> Parts:
    """Sampler, cache policy and commit rule as the configuration names them."""
    sampler = part_modules.load("sampler", config.sampler.name).Sampler(config.sampler)
    cache = part_modules.load("cache", config.cache.name).Cache(config.cache)
    commit = part_modules.load("commit", config.commit.name).Commit(config.commit)
    return Parts(sampler, cache, commit)


def build_sequences(model: Model, config: RunConfig, requests: Sequence[Request]) -> Batch:
    """The canvas of ``requests`` followed by masks, padded on the left to one width.

    Raises ConfigError for an empty prompt or ids outside the vocabulary.
    """
    shape, gen_length = model.shape, config.sampler.gen_length
    for request in requests:
        _check_prompt(request, shape.vocab)
    width = max(len(request.prompt_ids) for request in requests) + gen_length
    padding = [width - gen_length - len(request.prompt_ids) for request in requests]
    copies = 2 if config.sampler.guidance > 0 else 1
    host = torch.full((copies * len(requests), width), shape.pad_id)
    sequences = []
    for slot, (request, pad) in enumerate(zip(requests, padding, strict=True)):
        prompt_end = width - gen_length
        host[slot, pad:prompt_end] = torch.tensor(request.prompt_ids)
        host[slot, prompt_end:] = shape.mask_id
        sequences.append(
            SequenceState(
                id=request.id,
                tokens=host[slot, pad:],
                prompt_length=len(request.prompt_ids),
                mask_id=shape.mask_id,
                eos_id=shape.eos_id,
                generator=torch.Generator().manual_seed(request.seed),
                shifted=shape.shifted,
            )
        )
    given = host[: len(requests)] != shape.mask_id
    given &= torch.arange(width) >= torch.tensor(padding)[:, None]
    canvas = host if model.device.type == "cpu" else host.to(model.device)
    noise = [torch.Generator(device=model.device).manual_seed(request.seed) for request in requests]
    return Batch(host, canvas, given, padding * copies, sequences, noise)


def _check_prompt(request: Request, vocab: int) -> None:
    if not request.prompt_ids:
        raise ConfigError(f"{request.id}: the prompt is empty. Give it at least one token.")
    outside = [i for i in request.prompt_ids if not 0 <= i < vocab]
    if outside:
        raise ConfigError(
            f"{request.id}: prompt id {outside[0]} is outside the vocabulary [0, {vocab - 1}]. "
            "The tokenizer does not belong to this model: check model.path and model.tokenizer."
        )
