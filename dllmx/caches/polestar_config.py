"""Settings of the cache policy ``polestar``."""

from __future__ import annotations

from dataclasses import dataclass

from dllmx.caches.polestar_states import RESIDUAL_FORMATS, held_bytes
from dllmx.config.ranges import check_at_least, check_between, check_choice
from dllmx.engine.interface import Sizes
from dllmx.errors import ConfigError


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
    residual_format: str = "nvfp4"

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
        check_choice("cache.residual_format", self.residual_format, RESIDUAL_FORMATS)
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

    def held_bytes(self, sizes: Sizes) -> int:
        """Bytes of the window's inputs, centroids and proxies, and of the last step's scores."""
        rows = min((self.prefix_blocks + self.suffix_blocks) * sizes.block_length, sizes.length)
        clusters = min(self.centroids, rows)
        window = held_bytes(self.residual_format, rows, sizes.width, sizes.value_bytes)
        indices = 16 * (rows + clusters)  # members and their labels, counts and places
        centroids = 4 * clusters * (sizes.width + sizes.heads * sizes.length)
        queries = sizes.heads * sizes.block_length * (sizes.head_dim * sizes.value_bytes + 4)
        keys = sizes.kv_heads * sizes.length * sizes.head_dim * sizes.value_bytes
        layers = sizes.layers if self.centroids else 0
        return layers * (window + indices + centroids) + queries + keys
