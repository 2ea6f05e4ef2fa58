"""From logits to proposals: guidance, end-of-text suppression, temperature, confidence."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dllmx.config.schema import SamplingConfig
from dllmx.kernels.choice import Kernels
from dllmx.kernels.confidence import Confidence
from dllmx.models.model import ModelShape


def guided(conditional: Tensor, unconditional: Tensor, scale: float) -> Tensor:
    """Classifier-free guidance, u + (scale + 1)(c - u), of two [N, V] logits (LLaDA's form)."""
    return unconditional + (scale + 1) * (conditional - unconditional)


def propose(
    logits: Tensor,
    sampling: SamplingConfig,
    shape: ModelShape,
    measures: frozenset[str],
    noise: Sequence[tuple[int, torch.Generator]],
    current: Tensor,
    kernels: Kernels,
) -> Confidence:
    """A token for every row of ``logits`` [N, V] (overwritten), with its measures.

    The logits are float32, or of any float dtype where ``kernels`` read all.
    ``noise``: runs of rows and the generator that draws their noise, used at temperature > 0.
    ``current`` [N]: what stands on the canvas, whose probability is one of the measures.
    Confidence comes from the untempered distribution, or with ``confidence_from=sampled`` from
    the tempered and filtered one. ``suppress_eos=logits`` makes end-of-text impossible;
    ``suppress_eos=confidence`` lets it be proposed with probability 0, so that it goes last.
    """
    if sampling.suppress_eos == "logits":
        logits[:, shape.eos_id] = -torch.inf
    entropy, margin = "entropy" in measures, "margin" in measures
    standing = None
    if "current" in measures:
        standing = kernels.probability_of(_scratch(logits, kernels), current)
    if _takes_one_look(sampling):
        gumbel = _gumbel(logits, noise) if sampling.temperature > 0 else None
        measured = kernels.confidence(
            logits,
            shape.mask_id,
            entropy,
            margin,
            noise=gumbel,
            temperature=sampling.temperature or 1.0,
        )
        return measured._replace(current=standing)
    drawn = _adjusted(logits, sampling)
    source = drawn if sampling.confidence_from == "sampled" else logits
    measured = kernels.confidence(_scratch(source, kernels), shape.mask_id, entropy, margin)
    token = measured.token
    if sampling.temperature > 0:
        perturbed = drawn.double() + _gumbel(drawn, noise)
        perturbed[:, shape.mask_id] = -torch.inf
        token = perturbed.argmax(-1)
    if sampling.suppress_eos == "confidence":
        ends = [shape.eos_id] if shape.eot_id is None else [shape.eos_id, shape.eot_id]
        source[:, ends] = -torch.inf
    probability = kernels.probability_of(source, token)
    return measured._replace(token=token, probability=probability, current=standing)


def is_plain(sampling: SamplingConfig) -> bool:
    """Whether proposals follow from the logits alone, with nothing else as large as they are."""
    return sampling.temperature == 0 and _takes_one_look(sampling)


def _takes_one_look(sampling: SamplingConfig) -> bool:
    """Whether a token and its confidence come from the logits as they are."""
    filtered = sampling.top_p is not None or sampling.top_k is not None
    of_tempered = sampling.temperature > 0 and sampling.confidence_from == "sampled"
    return not filtered and not of_tempered and sampling.suppress_eos != "confidence"


def _scratch(logits: Tensor, kernels: Kernels) -> Tensor:
    """``logits``, or a copy of them for kernels that overwrite what they read."""
    return logits.clone() if kernels.overwrites_logits else logits


def _adjusted(logits: Tensor, sampling: SamplingConfig) -> Tensor:
    """Logits after temperature, nucleus and top-k filter (in that order, as Dream's sampler)."""
    scaled = logits / sampling.temperature if sampling.temperature > 0 else logits.clone()
    if sampling.top_p is not None and sampling.top_p < 1:
        ordered, order = scaled.sort(dim=-1, descending=True)
        mass_before = ordered.softmax(-1).cumsum(-1).roll(1, dims=-1)
        mass_before[:, 0] = 0.0
        dropped = torch.zeros_like(scaled, dtype=torch.bool)
        dropped.scatter_(1, order, mass_before > sampling.top_p)
        scaled.masked_fill_(dropped, -torch.inf)
    if sampling.top_k is not None:
        least = scaled.topk(min(sampling.top_k, scaled.shape[-1])).values[:, -1:]
        scaled.masked_fill_(scaled < least, -torch.inf)
    return scaled


def _gumbel(logits: Tensor, noise: Sequence[tuple[int, torch.Generator]]) -> Tensor:
    """Gumbel noise for each of ``logits``: float64, as the ratio of two tails needs.

    The argmax of logits and noise is a sample of their distribution.
    """
    uniform = torch.cat(
        [
            torch.rand(
                (rows, logits.shape[1]),
                generator=generator,
                dtype=torch.float64,
                device=logits.device,
            )
            for rows, generator in noise
        ]
    )
    return -(-uniform.clamp_(min=1e-300).log_()).log_()
