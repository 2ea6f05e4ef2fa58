"""Polestar-Cache (arXiv 2607.14107, section 4.1 and Algorithm 1).

A local window, some blocks before and behind the current one, is clustered layer by layer when the
block is entered. A centroid stands for its cluster: projected to a query it has a *proxy
attention*, and the KL divergence from its previous proxy attention is the cluster's drift. When
enough tokens have been decoded, a step refreshes: at each layer the members of the clusters that
drifted most join the block's rows, and what they become is the next layer's update packet, which
patches inputs, keys, values and centroids there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dllmx.caches.polestar_clusters import (
    LayerClusters,
    cluster_layer,
    members_of,
    patch_centroids,
    proxy_attention,
)
from dllmx.caches.polestar_window import Segment, block_rows, row_before, segments_of, window_of
from dllmx.config.ranges import check_at_least, check_between, check_choice
from dllmx.engine.interface import (
    NOTHING,
    AttentionRequest,
    CachePolicy,
    LayerContext,
    Needs,
    Plan,
    View,
)
from dllmx.errors import ConfigError
from dllmx.kernels.attention_drift import attention_drift_torch
from dllmx.kernels.proxy_drift import proxy_drift_torch


@dataclass(frozen=True)
class Config:
    """The paper's Table 5, and what its released code adds; see ``conf/cache/polestar.yaml``."""

    name: str
    centroids: int = 8
    top_k: int = 4
    top_k_last: int | None = None
    prefix_blocks: int = 2
    suffix_blocks: int = 1
    tau_upd: float | None = 3.0
    step_trigger: float | None = None
    cumulative_trigger: float | None = None
    entry_period: int = 2
    partial_entry: int | None = 1
    clustering: str = "joint"
    start: str = "even"
    iterations: int = 5
    proxy_rotation: str = "none"
    drift_reference: str = "refresh"

    def __post_init__(self) -> None:
        for key in ("centroids", "prefix_blocks", "suffix_blocks", "partial_entry"):
            check_at_least(f"cache.{key}", getattr(self, key), 0)
        for key in ("tau_upd", "step_trigger", "cumulative_trigger"):
            check_at_least(f"cache.{key}", getattr(self, key), 0)
        check_at_least("cache.entry_period", self.entry_period, 1)
        check_at_least("cache.iterations", self.iterations, 1)
        check_choice("cache.clustering", self.clustering, ("joint", "split"))
        check_choice("cache.start", self.start, ("even", "random"))
        check_choice("cache.proxy_rotation", self.proxy_rotation, ("none", "mean"))
        check_choice("cache.drift_reference", self.drift_reference, ("refresh", "step"))
        check_between("cache.partial_entry", self.partial_entry, 0, self.entry_period - 1)
        most = max(self.centroids, 1)
        check_between("cache.top_k", self.top_k if self.centroids else 1, 1, most)
        check_between("cache.top_k_last", self.top_k_last, 1, most)
        own = (self.step_trigger, self.cumulative_trigger)
        if (self.tau_upd is None) == (None in own):
            raise ConfigError(
                "Give either cache.tau_upd, or cache.tau_upd=null with both cache.step_trigger and "
                "cache.cumulative_trigger; inf in any of them means never."
            )
        if self.clustering == "split" and self.centroids == 1:
            raise ConfigError("cache.clustering=split needs cache.centroids=2 or more, or 0.")

    def limit(self, own: float | None) -> float:
        """Tokens above which a trigger fires: its own number, else tau_upd."""
        limit = self.tau_upd if own is None else own
        assert limit is not None
        return limit


class Cache(CachePolicy):
    """Full or window entry; then the block, and the drifting clusters when a refresh is due."""

    needs = Needs(
        store=frozenset({"k", "v", "k_unrotated", "x"}),
        layer_hook=True,
        attention=AttentionRequest("head_rows", layers=(-1,)),
        publishes=frozenset({"drift", "packet"}),
    )

    def __init__(self, config: Config) -> None:
        self.config = config
        if not config.centroids:
            self.needs = replace(self.needs, store=frozenset({"k", "v"}), layer_hook=False)
        elif config.proxy_rotation == "mean":
            self.needs = replace(self.needs, store=frozenset({"k", "v", "x"}))
        self.segments: list[Segment] = []
        self.layers: list[LayerClusters] = []
        self.window = self.block_rows = self.packet = NOTHING
        self.refreshing = False
        self.decoded_last = self.decoded = 0
        self.block_attention: Tensor | None = None
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

    def on_layer(self, view: View, context: LayerContext) -> Tensor | None:
        """Entry: cluster. Refresh: patch the centroids, choose the members of the next packet."""
        if view.block_step == 0:
            self.layers.append(self._clusters(view, context))
            return None
        clusters = self.layers[context.layer]
        patch_centroids(clusters, context)
        proxies = proxy_attention(clusters, context)
        drift = proxy_drift_torch(proxies, clusters.proxies)
        clusters.proxies = proxies
        if not self.refreshing:
            return None
        self._choose_packet(drift, clusters, context.is_last)
        rows = torch.cat([self.block_rows, self.packet]).unique()
        return rows.to(context.rows.device)

    def publish(self, view: View) -> None:
        """``drift`` [B] of the block's tokens (None at entry), ``packet``: the last layer's."""
        view.signals["packet"] = self.packet
        if "drift" not in view.read_signals:
            return
        (attention,) = view.attention.values()
        drift = None
        if view.block_step > 0 and self.block_attention is not None:
            drift = attention_drift_torch(attention, self.block_attention).cpu()
        self.block_attention = attention
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

    def _clusters(self, view: View, context: LayerContext) -> LayerClusters:
        config = self.config
        generator = view.generator if config.start == "random" else None
        at_places = config.proxy_rotation == "mean"
        return cluster_layer(
            context, view.length, self.segments, config.iterations, generator, at_places
        )
