"""Identities that hold whatever the model, on tiny random models of both families."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from building import decode_config, install_part, random_model
from hypothesis import given, settings
from hypothesis import strategies as st

from dllmx.config.schema import RunConfig
from dllmx.decode.decoder import Decoded, Decoder, Request
from dllmx.decode.session import Session
from dllmx.engine.interface import CachePolicy, CommitRule, Needs, Plan, Prediction, View
from dllmx.engine.interface import Commit as Decision
from dllmx.errors import RunError

FAMILIES = ("llada", "dream")
CACHES = ("none", "prefix", "dual")
COMMITS: tuple[dict[str, Any], ...] = (
    {"name": "quota"},
    {"name": "quota", "score": "random"},
    {"name": "quota", "score": "entropy"},
    {"name": "threshold", "threshold": 0.3},
    {"name": "factor", "factor": 2.0},
    {"name": "dream", "algorithm": "origin"},
    {"name": "dream", "algorithm": "topk_margin"},
    {"name": "budget-threshold", "threshold": 0.3},
)
KEYS_AND_VALUES = Needs(store=frozenset({"k", "v"}))


def prompt(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, 58, (length,), generator=generator).tolist()


def config_of(cache: str, commit: dict[str, Any], **sampler: Any) -> RunConfig:
    blocks = {"name": "blocks", "gen_length": 16, "block_length": 8} | sampler
    return decode_config(blocks, {"name": cache}, commit)


def decode(family: str, config: RunConfig, *prompts: list[int]) -> list[Decoded]:
    requests = [Request(str(i), ids, seed=i) for i, ids in enumerate(prompts)]
    return Decoder(random_model(family), config).decode(requests)


def steps(decoded: Decoded) -> list[tuple[Any, ...]]:
    return [(step.commit, step.remask, step.rows, step.full) for step in decoded.steps]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("commit", COMMITS, ids=str)
def test_a_cache_that_always_refreshes_equals_no_cache(
    family: str, commit: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class EveryRow(CachePolicy):
        needs = KEYS_AND_VALUES

        def __init__(self, config: Any) -> None:
            pass

        def plan(self, view: View) -> Plan:
            return Plan(torch.arange(view.length))

    install_part(monkeypatch, "cache", "every_row", EveryRow)
    refreshed = decode(family, config_of("every_row", commit), prompt(9, 1))[0]
    plain = decode(family, config_of("none", commit), prompt(9, 1))[0]
    assert refreshed.output_ids == plain.output_ids
    assert [step.commit for step in refreshed.steps] == [step.commit for step in plain.steps]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_one_block_steps_reread_nothing_stale_when_each_block_is_one_token(
    family: str, cache: str
) -> None:
    """With blocks of one token every step is an entry, so a cache has nothing to reuse."""
    sampler = {"block_length": 1, "gen_length": 6}
    cached = decode(family, config_of(cache, {"name": "quota"}, **sampler), prompt(7, 2))[0]
    plain = decode(family, config_of("none", {"name": "quota"}, **sampler), prompt(7, 2))[0]
    assert cached.output_ids == plain.output_ids
    assert cached.counters.recompute_ratio == 1.0


@settings(max_examples=40, deadline=None)
@given(
    family=st.sampled_from(FAMILIES),
    cache=st.sampled_from(CACHES),
    commit=st.sampled_from(COMMITS),
    lengths=st.lists(st.integers(1, 12), min_size=2, max_size=4),
    guidance=st.sampled_from((0.0, 0.5)),
    eos=st.sampled_from(("none", "fill", "stop")),
)
def test_a_batch_gives_what_its_members_give_alone(
    family: str,
    cache: str,
    commit: dict[str, Any],
    lengths: list[int],
    guidance: float,
    eos: str,
) -> None:
    config = config_of(cache, commit, guidance=guidance, eos=eos)
    prompts = [prompt(length, seed) for seed, length in enumerate(lengths)]
    together = decode(family, config, *prompts)
    model = random_model(family)
    for i, ids in enumerate(prompts):
        alone = Decoder(model, config).decode([Request(str(i), ids, seed=i)])[0]
        assert steps(together[i]) == steps(alone)
        assert together[i].output_ids == alone.output_ids
        assert together[i].counters.row_layers == alone.counters.row_layers


@pytest.mark.parametrize("family", FAMILIES)
def test_sampling_noise_does_not_depend_on_the_batch(family: str) -> None:
    config = config_of("dual", {"name": "threshold"}, temperature=0.8, top_p=0.9)
    prompts = [prompt(5, 3), prompt(8, 4)]
    together = decode(family, config, *prompts)
    model = random_model(family)
    for i, ids in enumerate(prompts):
        alone = Decoder(model, config).decode([Request("x", ids, seed=i)])[0]
        assert together[i].output_ids == alone.output_ids
    other = Decoder(model, config).decode([Request("x", prompts[0], seed=99)])[0]
    assert other.output_ids != together[0].output_ids


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cache", CACHES)
def test_a_clone_continues_as_the_original(family: str, cache: str) -> None:
    config = config_of(cache, {"name": "quota", "score": "random"}, temperature=0.5)
    session = Session(random_model(family), config, [Request("x", prompt(6, 5), seed=3)])
    for _ in range(5):
        session.step()
    copy = session.clone()
    while copy.step():
        pass
    halfway = session.sequences[0].tokens.clone()
    assert bool((halfway == session.sequences[0].mask_id).any()), "the clone wrote the original"
    while session.step():
        pass
    assert torch.equal(session.sequences[0].tokens, copy.sequences[0].tokens)
    assert session.sequences[0].records == copy.sequences[0].records


@pytest.mark.parametrize("family", FAMILIES)
def test_two_runs_with_one_seed_agree(family: str) -> None:
    config = config_of("dual", {"name": "quota", "score": "random"}, temperature=1.0)
    first, second = (decode(family, config, prompt(6, 6))[0] for _ in range(2))
    assert first.steps == second.steps


@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_that_is_read_before_it_is_written_is_an_error(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoEntry(CachePolicy):
        needs = KEYS_AND_VALUES

        def __init__(self, config: Any) -> None:
            pass

        def plan(self, view: View) -> Plan:
            return Plan(torch.arange(view.block.lo, view.block.hi))

    install_part(monkeypatch, "cache", "no_entry", NoEntry)
    with pytest.raises(RunError, match="NaN"):
        decode(family, config_of("no_entry", {"name": "quota"}), prompt(4, 7))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_order_of_planned_rows_does_not_matter(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Backwards(CachePolicy):
        needs = KEYS_AND_VALUES

        def __init__(self, config: Any) -> None:
            pass

        def plan(self, view: View) -> Plan:
            if view.block_step == 0:
                return Plan()
            return Plan(torch.arange(view.block.lo, view.block.hi).flip(0))

    install_part(monkeypatch, "cache", "backwards", Backwards)
    backwards = decode(family, config_of("backwards", {"name": "quota"}), prompt(9, 8))[0]
    dual = decode(family, config_of("dual", {"name": "quota"}), prompt(9, 8))[0]
    assert steps(backwards) == steps(dual)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_rule_sees_only_rows_that_are_fresh(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[list[int], list[int]]] = []

    class Watching(CommitRule):
        needs = Needs(read="masks")

        def __init__(self, config: Any) -> None:
            pass

        def select(self, view: View, prediction: Prediction) -> Decision:
            shift = 1 if family == "dream" else 0
            fresh = (view.computed_at == view.step).nonzero()[:, 0] + shift
            seen.append((prediction.positions.tolist(), fresh.tolist()))
            best = prediction.restricted(prediction.eligible)
            return best.commit(best.confidence.argmax()[None])

    install_part(monkeypatch, "commit", "watching", Watching)
    decode(family, config_of("dual", {"name": "watching"}), prompt(5, 9))
    assert len(seen) == 16
    assert all(set(positions) <= set(fresh) for positions, fresh in seen)
    assert len(seen[0][0]) == 16, "a full forward predicts every mask"
    # In a shifted model the block's last row predicts the mask behind the block too.
    assert len(seen[1][0]) == (8 if family == "dream" else 7)


@pytest.mark.parametrize("family", FAMILIES)
def test_infilling_decodes_the_masks_of_the_prompt(family: str) -> None:
    ids = prompt(12, 10)
    ids[3] = ids[8] = 59
    for sampler in ({"name": "blocks"}, {"name": "blocks", "compat": "llada"}):
        decoded = decode(family, config_of("none", {"name": "threshold"}, **sampler), ids)[0]
        assert 59 not in decoded.output_ids
        done = 59 not in decoded.prompt_ids
        assert done or sampler.get("compat") == "llada"
    full = decode_config(
        {"name": "full", "gen_length": 16}, {"name": "none"}, {"name": "threshold"}
    )
    assert 59 not in decode(family, full, ids)[0].prompt_ids
