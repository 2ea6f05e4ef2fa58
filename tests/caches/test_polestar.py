"""Identities of the Polestar cache, in float32 on tiny random models of both families."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from building import decode_config, random_model
from hypothesis import given, settings
from hypothesis import strategies as st
from seeing import MASK, view_of

from dllmx.caches.polestar import Cache, Config
from dllmx.caches.polestar_window import segments_of, window_of
from dllmx.config.schema import RunConfig
from dllmx.decode.decoder import Decoded, Decoder, Request
from dllmx.decode.session import Session
from dllmx.engine.engine import Engine
from dllmx.engine.interface import Block, LayerContext, View
from dllmx.engine.rows import RowSet, SlotSet
from dllmx.errors import ConfigError

FAMILIES = ("llada", "dream")
STATIC: dict[str, Any] = {"rule": "static", "suffix_threshold": None}
RELEASE: dict[str, Any] = {
    "top_k_last": 1,
    "tau_upd": None,
    "step_trigger": 1,
    "cumulative_trigger": 2,
    "entry_period": 4,
    "partial_entry": 3,
    "clustering": "split",
    "start": "random",
}
REASONS = ("block", "refresh: step", "refresh: cumulative")
VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    RELEASE,
    {"tau_upd": 0, "centroids": 3, "top_k": 1, "start": "random"},
    {"proxy_rotation": "mean", "drift_reference": "step", "partial_entry": None},
    {"prefix_blocks": 1, "suffix_blocks": 0, "clustering": "split"},
    {"prefix_blocks": 0, "suffix_blocks": 2, "tau_upd": 1},
)


def prompt(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, 58, (length,), generator=generator).tolist()


def config_of(cache: dict[str, Any], commit: dict[str, Any], **sampler: Any) -> RunConfig:
    blocks = {"name": "blocks", "gen_length": 24, "block_length": 8} | sampler
    return decode_config(
        blocks, {"name": "polestar", "residual_format": "none"} | cache, {"name": "drift"} | commit
    )


def decode(family: str, config: RunConfig, *prompts: list[int]) -> list[Decoded]:
    requests = [Request(str(i), ids, seed=i) for i, ids in enumerate(prompts)]
    return Decoder(random_model(family), config).decode(requests)


def started(family: str, config: RunConfig, length: int = 9) -> Session:
    return Session(random_model(family), config, [Request("x", prompt(length, 1), seed=0)])


def steps(decoded: Decoded) -> list[tuple[Any, ...]]:
    return [(step.commit, step.rows, step.full) for step in decoded.steps]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("idle", [{"centroids": 0}, {"tau_upd": float("inf")}], ids=str)
def test_without_refresh_and_early_commits_it_is_the_dual_cache(
    family: str, idle: dict[str, Any]
) -> None:
    for threshold in (0.3, 0.9):
        ours = config_of({"partial_entry": None} | idle, STATIC | {"threshold": threshold})
        blocks = {"name": "blocks", "gen_length": 24, "block_length": 8}
        rule = {"name": "threshold", "threshold": threshold}
        dual = decode_config(blocks, {"name": "dual"}, rule)
        found, expected = (decode(family, config, prompt(9, 1))[0] for config in (ours, dual))
        assert steps(found) == steps(expected)
        assert found.counters == expected.counters


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("variant", [{}, {"start": "random"}, {"proxy_rotation": "mean"}], ids=str)
def test_refreshing_the_whole_sequence_at_every_step_is_a_full_forward(
    family: str, variant: dict[str, Any]
) -> None:
    whole = {"prefix_blocks": 99, "suffix_blocks": 99, "partial_entry": None, "tau_upd": 0}
    session = started(family, config_of(whole | {"top_k": 8} | variant, STATIC))
    model, engine = session.model, session.engine
    width = session.host.shape[1]
    every_row = RowSet.of_span(0, width, 1, model.device)
    reasons = set()
    while True:
        tokens = session.host.clone()
        if not session.step():
            break
        plain = Engine(model, tokens, [0], frozenset({"k", "v"}))
        plain.forward(SlotSet((0,)), every_row)
        for name in ("k", "v"):
            torch.testing.assert_close(engine.store.tensors[name], plain.store.tensors[name])
        record = session.sequences[0].records[-1]
        logits = model.forward_logits(tokens)[0].double().softmax(-1)
        expected = [float(logits[position, token]) for position, token in record.commit]
        assert record.confidence == pytest.approx(expected, rel=1e-4)
        reasons.add(record.reason)
    assert reasons == {"entry", "refresh: step"}


@settings(max_examples=15, deadline=None)
@given(
    family=st.sampled_from(FAMILIES),
    variant=st.sampled_from([v for v in VARIANTS if v.get("suffix_blocks") != 2]),
    length=st.integers(1, 20),
)
def test_centroids_moved_by_increments_are_the_means_of_their_members(
    family: str, variant: dict[str, Any], length: int
) -> None:
    session = started(family, config_of(variant, {}), length)
    cache = session.parts[0].cache
    assert isinstance(cache, Cache)
    moved = 0
    while session.step():
        for clusters in cache.layers:
            states = clusters.states()
            for label, count in enumerate(clusters.counts.tolist()):
                members = clusters.labels == label
                assert count == int(members.sum())
                if count:
                    expected = states[members].mean(0)
                    torch.testing.assert_close(
                        clusters.centroids[label], expected, rtol=1e-3, atol=1e-4
                    )
        moved += session.sequences[0].records[-1].reason.startswith("refresh")
    assert moved


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("variant", VARIANTS[:3], ids=str)
def test_a_refresh_follows_enough_tokens_decoded_in_the_block(
    family: str, variant: dict[str, Any]
) -> None:
    step_limit = variant.get("step_trigger", variant.get("tau_upd", 3))
    limit = variant.get("cumulative_trigger", variant.get("tau_upd", 3))
    commit = {"threshold": 0.9, "suffix_threshold": 0.1}
    decoded = decode(family, config_of(variant, commit), prompt(9, 1))[0]
    last = total = 0
    block, fired = None, set()
    for step in decoded.steps:
        if step.block != block:
            block, last, total = step.block, 0, 0
            assert "entry" in step.reason
        else:
            reason = "block"
            if last > step_limit:
                reason = "refresh: step"
            elif total > limit:
                reason = "refresh: cumulative"
            assert step.reason == reason
            fired.add(reason)
            if reason != "block":
                assert step.note["decoded"] == {"last": last, "since_refresh": total}
                total = 0
        last = sum(position < step.block[1] for position, _ in step.commit)
        total += last
    assert fired == ({"refresh: step"} if limit == 0 else {*REASONS})
    assert any(step.note.get("suffix") for step in decoded.steps), "no commits to leave out"


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_committed_behind_the_block_stay_and_spare_forwards(family: str) -> None:
    decoded = decode(family, config_of({"tau_upd": 0}, {"suffix_threshold": 0.0}), prompt(9, 1))[0]
    without = decode(family, config_of({"tau_upd": 0}, {"suffix_threshold": None}), prompt(9, 1))[0]
    response = dict(enumerate(decoded.output_ids, start=9))
    ahead = 0
    for step in decoded.steps:
        for position, token in step.commit:
            assert response[position] == token
            ahead += position >= step.block[1]
        assert all(position >= step.block[1] for position in step.note.get("suffix", []))
    assert ahead > 0
    assert decoded.counters.nfe < without.counters.nfe


@pytest.mark.parametrize("family", FAMILIES)
def test_a_window_entry_computes_window_and_block_only(family: str) -> None:
    config = config_of({"prefix_blocks": 1, "suffix_blocks": 1}, STATIC, gen_length=40)
    decoded = decode(family, config, prompt(9, 1))[0]
    entries = [step for step in decoded.steps if "entry" in step.reason]
    assert [step.full for step in entries] == [True, False, True, False, True]
    lo, hi = entries[1].block
    assert entries[1].row_positions == list(range(lo - 8, hi + 8))
    assert entries[1].reason == "window entry"


@pytest.mark.parametrize("family", FAMILIES)
def test_packets_hold_the_members_of_the_chosen_clusters(family: str) -> None:
    config = config_of(RELEASE, {})
    session = started(family, config)
    cache = session.parts[0].cache
    assert isinstance(cache, Cache)
    refreshed = 0
    while session.step():
        note = session.sequences[0].records[-1].note
        if "packets" not in note:
            continue
        refreshed += 1
        assert [len(chosen) for chosen in note["clusters"]] == [4, 4, 1]
        for layer, chosen in enumerate(note["clusters"]):
            drift = torch.tensor(note["proxy_drift"][layer])
            assert drift[chosen].min() >= drift.sort().values[-len(chosen)]
            clusters = cache.layers[layer]
            labelled = zip(clusters.members.tolist(), clusters.labels.tolist(), strict=True)
            assert note["packets"][layer] == [p for p, label in labelled if label in chosen]
        assert set(session.views[0].signals["packet"].tolist()) == set(note["packets"][-1])
    assert refreshed


@settings(max_examples=25, deadline=None)
@given(
    family=st.sampled_from(FAMILIES),
    variant=st.sampled_from(VARIANTS),
    commit=st.sampled_from(({}, {"suffix_threshold": 0.1}, {"rule": "delta", "constant": 0.01})),
    lengths=st.lists(st.integers(1, 20), min_size=2, max_size=3),
)
def test_a_batch_gives_what_its_members_give_alone(
    family: str, variant: dict[str, Any], commit: dict[str, Any], lengths: list[int]
) -> None:
    config = config_of(variant, commit)
    prompts = [prompt(length, seed) for seed, length in enumerate(lengths)]
    together = decode(family, config, *prompts)
    for i, ids in enumerate(prompts):
        alone = Decoder(random_model(family), config).decode([Request(str(i), ids, seed=i)])[0]
        assert steps(together[i]) == steps(alone)
        assert together[i].counters.row_layers == alone.counters.row_layers
        for ours, theirs in zip(together[i].steps, alone.steps, strict=True):
            assert ours.note.get("packets") == theirs.note.get("packets")
            assert ours.note.get("drift") == pytest.approx(theirs.note.get("drift"), abs=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_clone_continues_as_the_original(family: str) -> None:
    session = started(family, config_of(RELEASE, {}))
    for _ in range(3):
        session.step()
    copy = session.clone()
    while copy.step():
        pass
    while session.step():
        pass
    assert session.sequences[0].records == copy.sequences[0].records


def test_steps_without_a_refresh_call_no_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    on_layer = Cache.on_layer

    def counted(self: Cache, view: View, context: LayerContext) -> Any:
        calls.append(view.step)
        return on_layer(self, view, context)

    monkeypatch.setattr(Cache, "on_layer", counted)
    decoded = decode("llada", config_of({}, {"threshold": 0.9}), prompt(9, 1))[0]
    hooked = [i for i, step in enumerate(decoded.steps) if step.reason != "block"]
    assert sorted(set(calls)) == hooked
    assert len(hooked) < len(decoded.steps)


def test_attention_is_read_out_only_for_a_rule_that_reads_drift() -> None:
    for rule, read in (({"name": "threshold"}, 0), ({"name": "drift"}, 1)):
        blocks = {"name": "blocks", "gen_length": 24, "block_length": 8}
        session = started("llada", decode_config(blocks, {"name": "polestar"}, rule))
        while session.step():
            assert len(session.views[0].scores) == read


@pytest.mark.parametrize("family", FAMILIES)
def test_drift_is_measured_against_the_previous_forward(family: str) -> None:
    session = started(family, config_of({"tau_upd": float("inf")}, {"threshold": 0.9}))
    session.step()
    assert session.views[0].signals["drift"] is None
    before = session.views[0].scores[2].probabilities
    session.step()
    now, drift = session.views[0].scores[2].probabilities, session.views[0].signals["drift"]
    assert now.shape == (4, 8, 33)
    expected = (now * (now / before).log()).sum(-1).mean(0)
    torch.testing.assert_close(drift, expected, rtol=1e-3, atol=1e-5)
    assert bool((drift > 0).any())


@pytest.mark.parametrize("family", FAMILIES)
def test_coarser_formats_of_the_window_patch_keys_and_values_worse(family: str) -> None:
    """Table 11: residuals in half precision or eight bits are as good as none, two bits are not."""
    model = random_model(family)
    errors, sizes = {}, {}
    for form in ("none", "fp16", "int8", "fp8", "nvfp4", "nvfp4-direct", "int2"):
        config = config_of({"tau_upd": 0, "top_k": 8, "residual_format": form}, STATIC)
        session = Session(model, config, [Request("x", prompt(20, 1), seed=0)])
        session.step()
        session.step()
        assert session.sequences[0].records[-1].reason == "refresh: step"
        sizes[form] = session.sequences[0].records[0].note["window_bytes"]
        kept = session.engine.store.tensors["k"][1:, 0]
        errors[form] = float((kept - errors.setdefault("exact", kept)).norm() / kept.norm())
    del errors["exact"]
    assert errors["none"] == 0
    assert 0 < errors["fp16"] < errors["int8"] < errors["nvfp4"] < errors["int2"]
    assert errors["int8"] < errors["fp8"] < errors["nvfp4"]
    assert sizes["none"] > sizes["fp16"] > sizes["int8"] > sizes["nvfp4"] > sizes["int2"]
    assert sizes["fp8"] < sizes["int8"]
    assert sizes["nvfp4"] == sizes["nvfp4-direct"]


def test_the_released_code_shares_clusters_by_the_sides_lengths() -> None:
    def shares(before: int, behind: int) -> list[int]:
        sides = torch.arange(before), torch.arange(100, 100 + behind)
        return [segment.clusters for segment in segments_of(*sides, clusters=8, split=True)]

    assert shares(32, 16) == [5, 3]
    assert shares(16, 16) == [4, 4]
    assert shares(8, 16) == [2, 6]
    assert shares(1, 16) == [1, 7]
    assert shares(32, 0) == [7], "the last block uses one cluster less"
    assert shares(0, 16) == [8]
    assert shares(3, 2) == [3, 2], "never more clusters than positions"


@pytest.mark.parametrize("shifted", [False, True])
def test_the_window_lies_around_the_block(shifted: bool) -> None:
    tokens = [1] * 10 + [MASK] * 12
    view = view_of(tokens, 6, Block(1, 10, 14, 6, 4))
    view._state.shifted = shifted
    before, behind = window_of(view, 2, 1)
    # a shifted model computes row 9 with the block: it predicts position 10
    assert before.tolist() == list(range(2, 9 if shifted else 10))
    assert behind.tolist() == [14, 15, 16, 17]
    assert window_of(view, 9, 9)[1].tolist() == list(range(14, 22))


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"top_k": 9}, "cache.top_k=9"),
        ({"top_k_last": 0}, "cache.top_k_last=0"),
        ({"tau_upd": None}, "cache.step_trigger"),
        ({"step_trigger": 1.0, "cumulative_trigger": 2.0}, "cache.tau_upd=null"),
        ({"partial_entry": 2}, "cache.partial_entry=2"),
        ({"clustering": "both"}, "cache.clustering=both"),
        ({"clustering": "split", "centroids": 1, "top_k": 1}, "cache.centroids=2"),
        ({"iterations": 0}, "cache.iterations=0"),
    ],
)
def test_values_that_make_no_sense_are_refused(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Config("polestar", **values)
