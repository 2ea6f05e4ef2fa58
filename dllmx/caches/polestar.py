"""Polestar-Cache (arXiv 2607.14107, section 4.1 and Algorithm 1).

A local window, some blocks before and behind the current one, is clustered layer by layer when the
block is entered. A centroid stands for its cluster: projected to a query it has a *proxy
attention*, and the KL divergence from its previous proxy attention is the cluster's drift. When
enough tokens have been decoded, a step refreshes: at each layer the members of the clusters that
drifted most join the block's rows, and what they become is the next layer's update packet, which
patches inputs, keys, values and centroids there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dllmx.caches.polestar_clusters import (
    Clustering,
    LayerClusters,
    cluster_layer,
    members_of,
    patched_states,
    refreshed_proxies,
)
from dllmx.caches.polestar_config import Config
from dllmx.caches.polestar_window import Segment, block_rows, row_before, segments_of, window_of
from dllmx.engine.interface import (
    NOTHING,
    AttentionRequest,
    CachePolicy,
    LayerContext,
    Needs,
    Plan,
    Rows,
    Scores,
    View,
)

__all__ = ["Cache", "Config"]


class Cache(CachePolicy):
    """Full or window entry; then the block, and the drifting clusters when a refresh is due."""

    needs = Needs(
        store=frozenset({"k", "v", "k_unrotated"}),
        layer_hook=True,
        attention=AttentionRequest("scores", layers=(-1,)),
        publishes=frozenset({"drift", "packet"}),
    )

    def __init__(self, config: Config) -> None:
        self.config = config
        self.needs = replace(self.needs, held=config.held_bytes)
        if not config.centroids:
            self.needs = replace(self.needs, store=frozenset({"k", "v"}), layer_hook=False)
        elif config.proxy_rotation == "mean":
            self.needs = replace(self.needs, store=frozenset({"k", "v"}))
        self.segments: list[Segment] = []
        self.layers: list[LayerClusters] = []
        self.window = self.block_rows = self.packet = NOTHING
        self.refreshing = False
        self.decoded_last = self.decoded = 0
        self.block_scores: Scores | None = None
        self.note: dict[str, Any] = {}

    def enter_block(self, view: View) -> None:
        """Nothing has been decoded here, and nothing is clustered."""
        self.decoded_last = self.decoded = 0
        self.layers = []
        config = self.config
        before, behind = window_of(view, config.prefix_blocks, config.suffix_blocks)
        self.window = torch.cat([before, behind])
        if config.centroids:
            split = config.clustering == "split" and config.suffix_blocks > 0
            self.segments = segments_of(before, behind, config.centroids, split)

    def plan(self, view: View) -> Plan:
        """Entry: everything, or window and block. Else the block, with a refresh when it is due."""
        self.note, self.packet, self.refreshing = {}, NOTHING, False
        self.block_rows = block_rows(view)
        read_out = "drift" in view.read_signals
        if view.block_step == 0:
            rows, reason = self._entry(view)
            return Plan(rows, None, reason, self.note, bool(self.segments), read_out)
        due = self._due() if self.segments else None
        if due is None:
            hook = bool(self.segments) and self.config.drift_reference == "step"
            return Plan(self.block_rows, None, "block", self.note, hook, read_out)
        self._start_refresh(view)
        return Plan(self.block_rows, None, f"refresh: {due}", self.note, True, read_out)

    def on_layer(self, view: View, context: LayerContext) -> Rows | None:
        """Entry: cluster. Refresh: patch the centroids, choose the members of the next packet."""
        if view.block_step == 0:
            self._cluster(view, context)
            return None
        clusters = self.layers[context.layer]
        states = patched_states(clusters, context)
        drift, clusters.proxies = refreshed_proxies(clusters, context)
        if not self.refreshing:
            return None
        self._choose_packet(drift, clusters, context.is_last)
        clusters.hold(states.to(context.x.dtype), self.config.residual_format)
        rows = torch.cat([self.block_rows, self.packet]).unique()
        return Rows(rows.to(context.rows.device), held=clusters.members, inputs=states)

    def publish(self, view: View) -> None:
        """``drift`` [B] of the block's tokens (None at entry), ``packet``: the last layer's."""
        view.signals["packet"] = self.packet
        if "drift" not in view.read_signals:
            return
        (scores,) = view.scores.values()
        drift = None
        if view.block_step > 0 and self.block_scores is not None:
            drift = view.kernels.scored_drift(*scores, *self.block_scores).cpu()
        self.block_scores = scores
        view.signals["drift"] = drift

    def after(self, view: View) -> None:
        """Count what was decoded in the block; tokens committed ahead of it do not count."""
        self.decoded_last = int((view.committed_last < view.block.hi).sum())
        self.decoded += self.decoded_last

    def _entry(self, view: View) -> tuple[Tensor | None, str]:
        """All rows, or at every so many blocks only the window and the block."""
        config = self.config
        partial = view.block.index % config.entry_period == config.partial_entry
        if view.step == 0 or not partial:
            return None, "entry"
        return torch.cat([self.block_rows, self.window]).unique(), "window entry"

    def _due(self) -> str | None:
        """Why this step refreshes, or None: too many tokens in the last step, or in all."""
        config = self.config
        if self.decoded_last > config.limit(config.step_trigger):
            return "step"
        return "cumulative" if self.decoded > config.limit(config.cumulative_trigger) else None

    def _start_refresh(self, view: View) -> None:
        self.note["decoded"] = {"last": self.decoded_last, "since_refresh": self.decoded}
        self.note |= {"clusters": [], "packets": [], "proxy_drift": []}
        self.decoded, self.refreshing = 0, True
        self.block_rows = torch.cat([row_before(view), self.block_rows]).unique()

    def _choose_packet(self, drift: Tensor, clusters: LayerClusters, is_last: bool) -> None:
        config = self.config
        top_k = config.top_k_last if is_last and config.top_k_last else config.top_k
        chosen = drift.topk(min(top_k, drift.numel())).indices
        self.packet = members_of(clusters, chosen).cpu()
        self.note["clusters"].append(chosen.tolist())
        self.note["packets"].append(self.packet.tolist())
        self.note["proxy_drift"].append(drift.tolist())

    def _cluster(self, view: View, context: LayerContext) -> None:
        config = self.config
        how = Clustering(
            self.segments,
            config.iterations,
            generator=view.generator if config.start == "random" else None,
            at_places=config.proxy_rotation == "mean",
            form=config.residual_format,
        )
        self.layers.append(cluster_layer(context, how))
        self.note["window_bytes"] = sum(clusters.nbytes for clusters in self.layers)
