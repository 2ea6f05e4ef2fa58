"""Polestar as its released code decodes: commits, triggers, clusters, refreshed rows, drift.

Everything matches but ties: at the first layer masks, and other repeated tokens, have equal inputs,
so that rounding decides which of several equal clusters they are given to, and which of several
equal drifts is the largest. There the recorded labels and the recorded choice are taken, after it
was shown that inputs and drifts agree (on one machine 33 of 1800 clusterings and 71 of 2060
choices, all at the first layer). The published code draws the first members of the clusters from a
generator seeded with 0; the sequence's own generator gives the same draws, and the recorded ones
are taken all the same, because a tie may change what is drawn afterwards.
"""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from building import decode_config
from torch import Tensor

from dllmx.caches import polestar_clusters
from dllmx.caches.polestar import Cache
from dllmx.caches.polestar_clusters import LayerClusters
from dllmx.config.compose import compose
from dllmx.config.schema import HardwareConfig, ModelConfig, RunConfig
from dllmx.decode.decoder import Request
from dllmx.decode.session import Session
from dllmx.engine.interface import LayerContext, Rows, View
from dllmx.engine.trace import StepRecord
from dllmx.kernels.spherical_kmeans import Clusters, spherical_kmeans_torch
from dllmx.models.loading import load_model
from dllmx.models.model import Model

REFERENCE = Path(__file__).parents[1] / "reference"
TIE = 1e-5
"""Relative difference of two clusters' drifts below which rounding decides their order."""
COMMITS: dict[str, dict[str, Any]] = {
    "polestar": {},
    "polestar_noearly": {"rule": "static"},
    "polestar_early0.4": {"early_minimum": 0.4},
}


@cache
def recorded(name: str) -> dict[str, Any]:
    path = REFERENCE / "trajectories-polestar" / f"{name}.json.gz"
    loaded: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return loaded


@cache
def reference_model() -> Model:
    folder = str(REFERENCE / "tiny-llada")
    config = ModelConfig("tiny-llada", "llada", "none", chat=False, path=folder)
    return load_model(config, HardwareConfig("cpu", "cpu", "float32", "torch"))


@cache
def released_parts() -> tuple[dict[str, Any], dict[str, Any]]:
    """Cache and commit rule as ``policy=polestar-release`` chooses them."""
    composed = compose(["policy=polestar-release"])
    return dict(composed.cache), dict(composed.commit)


def config_of(run: dict[str, Any], method: str) -> RunConfig:
    cache_part, commit_part = released_parts()
    sampler = {key: run[key] for key in ("gen_length", "block_length")} | {"name": "blocks"}
    return decode_config(sampler, cache_part, commit_part | COMMITS[method])


def _groups(labels: Tensor) -> set[tuple[int, ...]]:
    """The clusters as sets of positions, whatever their numbers."""
    used = labels.unique().tolist()
    return {tuple((labels == label).nonzero()[:, 0].tolist()) for label in used}


class Followed:
    """The recorded decode beside ours: what was clustered and chosen at every step."""

    def __init__(self, steps: list[dict[str, Any]], entries: list[dict[str, Any]]) -> None:
        self.steps = steps
        self.entries = {entry["block"]: entry for entry in entries}
        self.drawn = 0

    def started(self, view: View) -> Tensor:
        """The recorded first members; the same as ours unless an earlier tie changed the draws."""
        entry = self.entries[view.block.index]
        start = torch.tensor(entry["kmeans"][self.drawn]["init"])
        self.drawn = (self.drawn + 1) % len(entry["kmeans"])
        return start

    def labelled(self, view: View, context: LayerContext, made: LayerClusters) -> None:
        """Take the recorded labels, which may differ from ours where a row's cosines tie."""
        entry = self.entries[view.block.index]
        lo, _ = entry["window"]
        recorded_labels = torch.tensor(entry["labels"][context.layer])
        assert made.members.tolist() == (lo + (recorded_labels >= 0).nonzero()[:, 0]).tolist()
        labels = recorded_labels[made.members - lo]
        if torch.equal(labels, made.labels):
            return
        assert context.layer == 0
        x = context.x[torch.searchsorted(context.rows, made.members)]
        if _groups(labels) != _groups(made.labels):
            ours, theirs = (made.centroids[found] for found in (made.labels, labels))
            torch.testing.assert_close(
                F.cosine_similarity(x, ours), F.cosine_similarity(x, theirs), rtol=0, atol=1e-6
            )
        for label in labels.unique():
            made.centroids[label] = x[labels == label].mean(0)
        made.labels = labels
        made.counts = labels.bincount(minlength=made.counts.numel()).float()
        made.proxies = polestar_clusters.refreshed_proxies(made, context).attention

    def chosen(self, view: View, layer: int, drift: Tensor, ours: Tensor) -> Tensor:
        """The recorded choice, which may differ from ours where drifts tie."""
        step = self.steps[view.step]
        theirs = torch.tensor(step["top_clusters"][layer])
        their_drift = torch.tensor(step["proxy_drift"][layer])
        torch.testing.assert_close(drift, their_drift, rtol=1e-3, atol=2e-6)
        ranked, expected = drift[ours], drift[theirs]
        torch.testing.assert_close(ranked, expected, rtol=TIE, atol=1e-7)
        assert layer == 0 or torch.equal(ours, theirs)
        return theirs


@pytest.fixture
def follow(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Decodes follow the ``Followed`` that stands here under "now"."""
    seen: dict[str, Any] = {}
    cluster, choose, on_layer = Cache._cluster, Cache._choose_packet, Cache.on_layer

    def told_start(x: Tensor, count: int, iterations: int, generator: Any) -> Clusters:
        torch.randperm(x.shape[0], generator=generator)
        start = seen["now"].started(seen["view"])

        def spare() -> Tensor:
            return torch.randint(0, x.shape[0], (count,), generator=generator)

        return spherical_kmeans_torch(x, start, iterations, spare)

    def told_clusters(self: Cache, view: View, context: LayerContext) -> None:
        cluster(self, view, context)
        seen["now"].labelled(view, context, self.layers[-1])

    def told_choice(self: Cache, drift: Tensor, clusters: LayerClusters, last: bool) -> None:
        top_k = self.config.top_k_last if last else self.config.top_k
        ours = drift.topk(int(top_k or 0)).indices
        theirs = seen["now"].chosen(seen["view"], seen["layer"], drift, ours)
        ranked = drift.clone()
        ranked[theirs] = torch.arange(100.0, 100.0 - theirs.numel(), -1)
        choose(self, ranked, clusters, last)

    def told_layer(self: Cache, view: View, context: LayerContext) -> Rows | None:
        seen.update(view=view, layer=context.layer)
        return on_layer(self, view, context)

    monkeypatch.setattr(polestar_clusters, "_clustered", told_start)
    monkeypatch.setattr(Cache, "_cluster", told_clusters)
    monkeypatch.setattr(Cache, "_choose_packet", told_choice)
    monkeypatch.setattr(Cache, "on_layer", told_layer)
    return seen


def assert_same_step(ours: StepRecord, theirs: dict[str, Any]) -> None:
    assert ours.commit == sorted((position, token) for position, token, *_ in theirs["commits"])
    trigger = theirs["trigger"] or {"fired": False}
    assert ours.reason.startswith("refresh") == trigger["fired"]
    if trigger["fired"]:
        expected = {"last": trigger["last"], "since_refresh": trigger["cum"]}
        assert ours.note["decoded"] == expected
        assert ours.note["packets"] == theirs["refreshed"]
        assert ours.note["clusters"] == theirs["top_clusters"]
    by_rule = {
        kind: [c[0] for c in theirs["commits"] if c[2] == kind] for kind in ("early", "suffix")
    }
    for kind, positions in by_rule.items():
        assert ours.note.get(kind, []) == sorted(positions)
    if "drift" in ours.note:
        for key, name in (("drift", "token_drift"), ("delta", "delta")):
            expected_values = torch.tensor(theirs[name])
            torch.testing.assert_close(
                torch.tensor(ours.note[key]), expected_values, rtol=1e-3, atol=1e-5
            )


@pytest.mark.parametrize("method", COMMITS)
@pytest.mark.parametrize("name", ["polestar_release", "polestar_release_b8"])
def test_the_release_preset_repeats_the_released_decode(
    name: str, method: str, follow: dict[str, Any]
) -> None:
    for run in recorded(name)["runs"]:
        theirs = run["methods"][method]
        follow["now"] = Followed(theirs["steps"], theirs["entries"])
        session = Session(
            reference_model(), config_of(run, method), [Request("r", run["prompt_ids"], 0)]
        )
        while session.step():
            pass
        state = session.sequences[0]
        assert len(state.records) == len(theirs["steps"]) == theirs["nfe"]
        for ours, their in zip(state.records, theirs["steps"], strict=True):
            assert_same_step(ours, their)
        assert state.tokens.tolist() == theirs["final_ids"]
