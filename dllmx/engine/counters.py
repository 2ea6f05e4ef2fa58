"""What the engine counts. Parts report nothing about themselves."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """Counts of one sequence.

    ``nfe``: main forwards, block entries included; ``full`` and ``partial`` split it. ``shadow``:
    forwards of probes, never part of ``nfe``. ``row_layers``: rows x layers computed by main
    forwards; ``row_layers_full``: what full recomputation over the same steps would have cost.
    ``forced``: commits that the engine made so that the decode goes on. ``remasks``: masks put
    back; ``flip_flops``: those that got the same token again. ``host_syncs``: waits of the host
    for the device (shared by a batch). ``refresh_gaps``: steps between successive full forwards.
    """

    nfe: int = 0
    full: int = 0
    partial: int = 0
    shadow: int = 0
    row_layers: int = 0
    row_layers_full: int = 0
    forced: int = 0
    remasks: int = 0
    flip_flops: int = 0
    host_syncs: int = 0
    refresh_gaps: list[int] = field(default_factory=list)
    last_full: int | None = None

    @property
    def recompute_ratio(self) -> float:
        """Rows x layers computed over those of full recomputation; 1.0 without a cache."""
        return self.row_layers / self.row_layers_full if self.row_layers_full else 0.0

    def count_forward(self, row_layers: int, length: int, layers: int, is_full: bool) -> None:
        """Count one main forward over a canvas of ``length`` positions, and its one host sync."""
        if is_full:
            if self.last_full is not None:
                self.refresh_gaps.append(self.nfe - self.last_full)
            self.last_full = self.nfe
            self.full += 1
        else:
            self.partial += 1
        self.nfe += 1
        self.host_syncs += 1
        self.row_layers += row_layers
        self.row_layers_full += length * layers
