"""A decode gives the same tokens whichever kernels compute it."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from building import random_model

import dllmx.conf
from dllmx.config.compose import compose, validate
from dllmx.config.schema import RunConfig
from dllmx.decode import session as session_module
from dllmx.decode.decoder import Decoded, Decoder, Request
from dllmx.decode.session import Session
from dllmx.engine.engine import READ_FROM_ATTENTION, Engine
from dllmx.engine.interface import AttentionRequest, Scores
from dllmx.kernels.choice import TORCH, TRITON, Kernels

CONF = Path(dllmx.conf.__file__).parent
POLICIES = sorted(path.stem for path in (CONF / "policy").glob("*.yaml"))
LENGTHS = ["task.gen_length=8", "task.block_length=4", "logger=none"]
PROMPT = [3, 1, 4]
PROMPTS = {"llada": ([3, 1, 4, 1, 5], PROMPT), "dream": (PROMPT,)}
EVERYWHERE = {"confidence", "row_attention"}
OF_POLESTAR = {"scored_drift", "refresh_proxies", "batched_kmeans", "quantise", "dequantise"}


@cache
def config_of(policy: str, *overrides: str) -> RunConfig:
    return validate(compose([f"policy={policy}", *LENGTHS, *overrides]))


def decode(
    config: RunConfig, family: str, kernels: str, prompts: tuple[list[int], ...]
) -> list[Decoded]:
    attention = {"torch": "sdpa", "triton": "triton"}[kernels]
    hardware = replace(config.hardware, kernels=kernels, attention=attention)
    requests = [Request(str(i), prompt, seed=i) for i, prompt in enumerate(prompts)]
    return Decoder(random_model(family), replace(config, hardware=hardware)).decode(requests)


def recording(kernels: Kernels, used: set[str]) -> Kernels:
    """The same kernels; the name of each that is called joins ``used``."""

    def recorded(name: str, call: Any) -> Any:
        def called(*arguments: Any, **options: Any) -> Any:
            used.add(name)
            return call(*arguments, **options)

        return called

    calls = {field.name: getattr(kernels, field.name) for field in fields(kernels)}
    return replace(
        kernels, **{name: recorded(name, call) for name, call in calls.items() if callable(call)}
    )


def assert_same_decode(
    policy: str, family: str, *overrides: str, prompts: tuple[list[int], ...]
) -> None:
    config = config_of(policy, *overrides)
    ours, theirs = (decode(config, family, name, prompts) for name in ("triton", "torch"))
    for our, their in zip(ours, theirs, strict=True):
        assert our.output_ids == their.output_ids
        same_packets = True
        for step, expected in zip(our.steps, their.steps, strict=True):
            for name in ("commit", "remask", "reason", "row_positions"):
                assert getattr(step, name) == getattr(expected, name)
            # At the first layer masks have equal inputs: rounding decides which cluster goes first.
            same_packets &= step.note.get("packets") == expected.note.get("packets")
            if same_packets:
                assert step.confidence == pytest.approx(expected.confidence, rel=1e-4)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_every_policy_decodes_the_same_with_triton(policy: str, family: str) -> None:
    assert_same_decode(policy, family, prompts=PROMPTS[family])


@pytest.mark.parametrize("policy", ["fast-dllm", "polestar"])
def test_more_keys_than_a_tile_decode_the_same_with_triton(policy: str) -> None:
    prompt = [i * i % 57 + 1 for i in range(64)]
    assert_same_decode(policy, "dream", prompts=(prompt,))


@pytest.mark.parametrize(
    "overrides",
    [
        ("sampler.temperature=0.7",),
        ("sampler.temperature=0.7", "sampler.top_p=0.9", "sampler.confidence_from=sampled"),
        ("sampler.suppress_eos=logits",),
        ("sampler.suppress_eos=confidence",),
        ("sampler.guidance=0.5",),
    ],
    ids=str,
)
def test_every_way_to_propose_tokens_is_the_same_with_triton(overrides: tuple[str, ...]) -> None:
    assert_same_decode("parallel", "llada", *overrides, prompts=(PROMPT,))


@pytest.mark.parametrize("policy", ["parallel", "polestar"])
@pytest.mark.parametrize("name", ["torch", "triton"])
def test_a_decode_uses_the_chosen_kernels_for_all_it_does(
    policy: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: set[str] = set()
    chosen = recording({"torch": TORCH, "triton": TRITON}[name], used)
    monkeypatch.setattr(session_module, "choose", lambda *_: chosen)
    overrides = ["cache.tau_upd=0"] if policy == "polestar" else []
    decode(config_of(policy, *overrides), "llada", name, (PROMPT,))
    assert used == EVERYWHERE | (OF_POLESTAR if policy == "polestar" else set())


def test_attention_is_chosen_by_its_own_setting() -> None:
    config = config_of("parallel", "hardware.kernels=torch", "hardware.attention=triton")
    session = Session(random_model("llada"), config, [Request("x", PROMPT, seed=0)])
    assert session.engine.kernels.row_attention is TRITON.row_attention
    assert session.engine.kernels.confidence is TORCH.confidence


def test_a_clone_shares_the_kernels() -> None:
    session = Session(random_model("llada"), config_of("parallel"), [Request("x", [1, 2], seed=0)])
    assert session.kernels is session.clone().engine.kernels is TORCH


@pytest.mark.parametrize("kind", READ_FROM_ATTENTION)
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_read_outs_are_the_same_with_triton(kind: str, family: str) -> None:
    model, block = random_model(family), torch.tensor([4, 5, 6])
    canvas = torch.randint(1, 58, (1, 11), generator=torch.Generator().manual_seed(0))
    found = {}
    for kernels in (TORCH, TRITON):
        engine = Engine(model, canvas, [2], frozenset({"k", "v"}), kernels)
        for rows in (torch.arange(2, 11), block, torch.arange(3, 8)):
            request = AttentionRequest(kind, layers=(0, -1))
            readouts = engine.forward_hooked(0, rows, None, request, block)[3]
            assert list(readouts) == [0, 2]
            found[kernels.name, rows.numel()] = readouts
    for rows in (9, 3, 5):
        ours, theirs = found["triton", rows], found["torch", rows]
        for layer in (0, 2):
            torch.testing.assert_close(ours[layer], theirs[layer], rtol=1e-4, atol=1e-5)


def test_scores_keep_the_keys_of_their_own_forward() -> None:
    model, block = random_model("dream"), torch.tensor([4, 5])
    canvas = torch.randint(1, 58, (1, 9), generator=torch.Generator().manual_seed(0))
    engine = Engine(model, canvas, [1], frozenset({"k", "v"}))

    def scores() -> Scores:
        request = AttentionRequest("scores", layers=(-1,))
        (found,) = engine.forward_hooked(0, torch.arange(1, 9), None, request, block)[3].values()
        assert isinstance(found, Scores)
        return found

    before = scores()
    probabilities = before.probabilities.clone()
    canvas[0, 6] = 3
    after = scores()
    assert before.keys.shape == (model.shape.kv_heads, 8, model.shape.head_dim)
    torch.testing.assert_close(before.probabilities, probabilities)
    assert not torch.allclose(after.probabilities, probabilities)
    expected = (before.log_sum_exp.exp(), probabilities)
    weights = (before.q @ before.keys.repeat_interleave(2, 0).mT / 8**0.5).exp()
    torch.testing.assert_close((weights.sum(-1), weights / weights.sum(-1, keepdim=True)), expected)
