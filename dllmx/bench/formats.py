"""What the formats of Polestar's kept states cost: error of the patched keys and values, bytes.

A decode runs with unencoded states. Before each of its refreshes it is forked once a format, the
fork's states are encoded in that format, and both take the step. What differs in the keys and
values that the refresh patched is the error of the format (Polestar, arXiv 2607.14107, Table 11).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from dllmx.bench.forced import refuse_guidance
from dllmx.config.schema import RunConfig
from dllmx.decode.batch import Request
from dllmx.decode.session import Session
from dllmx.errors import ConfigError
from dllmx.models.model import Model

if TYPE_CHECKING:
    from dllmx.caches.polestar import Cache

FORMATS = ("fp16", "fp8", "int8", "mxfp4", "nvfp4", "nvfp4-direct", "int2")


@dataclass(frozen=True, slots=True)
class FormatReport:
    """``key_error``, ``value_error``: norm of the error over the norm of what is right, over all
    rows that ``refreshes`` refreshes patched; ``window_bytes``: mean size of the kept window with
    its centroids, all layers.
    """

    form: str
    refreshes: int
    key_error: float
    value_error: float
    window_bytes: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def measure_formats(
    model: Model,
    config: RunConfig,
    requests: Sequence[Request],
    forms: Sequence[str] = FORMATS,
) -> list[FormatReport]:
    """Decode ``requests`` one by one with the cache policy ``polestar`` and compare the formats.

    ConfigError when the cache policy is another, for guidance, or when no refresh took place.
    """
    if config.cache.name != "polestar":
        raise ConfigError(
            f"bench formats measures cache=polestar, not cache={config.cache.name}; try "
            "dllmx bench formats policy=polestar"
        )
    refuse_guidance(config, "bench formats")
    exact = replace(config, cache=replace(config.cache, residual_format="none"))
    totals = {form: _Total() for form in forms}
    for request in requests:
        _measure_decode(Session(model, exact, [request]), totals)
    if not any(total.refreshes for total in totals.values()):
        raise ConfigError(
            f"No refresh took place with cache.tau_upd={config.cache.tau_upd} in "
            f"{len(requests)} decodes; lower it, or decode more."
        )
    return [total.report(form) for form, total in totals.items()]


def _measure_decode(session: Session, totals: dict[str, _Total]) -> None:
    """Step ``session`` to its end, forking before every step that turns out to refresh."""
    while True:
        before = session.clone()
        if not session.step():
            return
        records = session.sequences[0].records
        if not records[-1].reason.startswith("refresh"):
            continue
        for form, total in totals.items():
            fork = before.clone()
            total.window_bytes += _encode(fork, form)
            fork.step()
            total.add(before, session, fork)


def _encode(session: Session, form: str) -> int:
    """Keep the states of every layer as ``form`` says; bytes that they then take."""
    cache: Cache = session.parts[0].cache  # type: ignore[assignment]
    for clusters in cache.layers:
        clusters.hold(clusters.states().to(session.model.dtype), form)
    return sum(clusters.nbytes for clusters in cache.layers)


@dataclass(slots=True)
class _Total:
    refreshes: int = 0
    window_bytes: int = 0
    key_error: float = 0.0
    key_norm: float = 0.0
    value_error: float = 0.0
    value_norm: float = 0.0

    def add(self, before: Session, exact: Session, fork: Session) -> None:
        self.key_error, self.key_norm = _added(
            (self.key_error, self.key_norm), "k", before, exact, fork
        )
        self.value_error, self.value_norm = _added(
            (self.value_error, self.value_norm), "v", before, exact, fork
        )
        self.refreshes += 1

    def report(self, form: str) -> FormatReport:
        return FormatReport(
            form,
            self.refreshes,
            (self.key_error / self.key_norm) ** 0.5,
            (self.value_error / self.value_norm) ** 0.5,
            self.window_bytes / self.refreshes,
        )


def _added(
    sums: tuple[float, float], name: str, before: Session, exact: Session, fork: Session
) -> tuple[float, float]:
    """``sums`` plus squared error and squared norm of the rows that a step patched.

    These are the rows outside the block whose stored tensor ``name`` changed.
    """
    old, right, found = (s.engine.store.tensors[name] for s in (before, exact, fork))
    block = exact.views[0].block
    patched = (right != old).any(-1, keepdim=True)  # [L, S, G, W, 1]
    patched[..., block.lo : block.hi, :] = False
    error = ((found - right) * patched).float().square().sum()
    return sums[0] + float(error), sums[1] + float((right * patched).float().square().sum())
