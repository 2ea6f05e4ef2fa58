"""What a method sees and says: View in; Block, Plan and Commit out. A method knows only this file.

All positions are those of one sequence's own canvas: 0 is its first prompt token. All tensors
here are small and live on the CPU, unless a comment says otherwise: the engine copies the
predictions of a step to the host in one transfer, and methods decide there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dllmx.engine.needs import AttentionRequest as AttentionRequest
from dllmx.engine.needs import Needs as Needs
from dllmx.engine.needs import Scores as Scores
from dllmx.engine.needs import Sizes as Sizes
from dllmx.kernels.choice import Kernels
from dllmx.kernels.proxy_drift import ProxyDrift

if TYPE_CHECKING:
    from dllmx.engine.sequence import SequenceState


@dataclass(frozen=True, slots=True)
class Block:
    """Positions [lo, hi) that may be committed now, ``index`` counting blocks from 0.

    ``eligible_from``: masks from here on compete for a commit: the start of the response, so that
    re-masked tokens of earlier blocks go on, or 0 where masks in the prompt take part. ``steps``:
    its share of ``sampler.steps``. ``window``: only the first so many masks may be committed; None
    means all.
    """

    index: int
    lo: int
    hi: int
    eligible_from: int
    steps: int
    window: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Which rows the next forward computes.

    ``rows``: sorted unique positions, or None for all. ``visible``: sorted unique positions whose
    keys may be seen, or None for all. ``reason``: why, for the trace ("entry", "block", ...);
    ``note``: values for the trace. ``hook``: whether this forward calls the layer hook of a part
    that has one; ``read_out``: whether it makes the read-out that a part needs. Without both it
    takes the fast path.
    """

    rows: Tensor | None = None
    visible: Tensor | None = None
    reason: str = "full"
    note: Mapping[str, Any] = field(default_factory=dict)
    hook: bool = True
    read_out: bool = True


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the network says at the N positions that were wanted and are fresh at this step.

    ``positions`` [N] sorted, ``token`` [N], ``confidence`` [N] float64: the token's probability;
    ``entropy``, ``margin`` (best minus second probability) and ``current`` (probability of what
    stands on the canvas) [N] float64 where ``Needs`` asks.
    ``eligible`` [N] bool: masked and inside the block. A row that was not computed is not here.
    """

    positions: Tensor
    token: Tensor
    confidence: Tensor
    eligible: Tensor
    entropy: Tensor | None = None
    margin: Tensor | None = None
    current: Tensor | None = None

    def restricted(self, keep: Tensor) -> Prediction:
        """The same prediction at the rows where ``keep`` [N] is True."""
        chosen = (None if value is None else value[keep] for value in self._columns())
        return Prediction(*chosen)  # type: ignore[arg-type]

    def commit(self, chosen: Tensor, **extra: Any) -> Commit:
        """Commit the predicted tokens at ``chosen`` (bool mask or indices into the rows)."""
        return Commit(self.positions[chosen], self.token[chosen], **extra)

    def _columns(self) -> tuple[Tensor | None, ...]:
        return (
            self.positions,
            self.token,
            self.confidence,
            self.eligible,
            self.entropy,
            self.margin,
            self.current,
        )


NOTHING = torch.empty(0, dtype=torch.long)


@dataclass(frozen=True, slots=True)
class Commit:
    """What a rule decides: write ``tokens`` at ``positions``, put masks back at ``remask``.

    ``idle``: committing nothing at this step is meant, so the engine does not force progress.
    ``stop``: end the decode after this step. ``note``: values for the trace.
    """

    positions: Tensor = NOTHING
    tokens: Tensor = NOTHING
    remask: Tensor = NOTHING
    idle: bool = False
    stop: bool = False
    note: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LayerContext:
    """What a layer hook may look at: ``rows`` [R] about to be computed at ``layer``.

    ``is_last``: no layer follows.
    ``x`` [R, D], ``q`` [H, R, h], ``k``, ``v`` [G, R, h] are fresh (device tensors, rotated), and
    so is ``k_unrotated`` [G, R, h]; ``store`` maps names to the stored tensors of this layer, still
    with their old values: k, v, k_unrotated [G, T, h]; x, q, attn_out, mlp_out [T, ...].
    ``queries`` gives the queries [H, n, h] that any hidden vectors [n, D] would have at this
    layer: rotated to the given positions [n], or not rotated where these are None.
    ``refresh_proxies`` takes such vectors and positions, keys [G, T, h] (rotated, or not where the
    positions are None) and an earlier attention [H, n, T] or None, and gives the attention of
    their queries and how far it moved. ``kernels``: the shared operations as the run chose them.
    """

    layer: int
    is_last: bool
    rows: Tensor
    x: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    k_unrotated: Tensor
    store: Mapping[str, Tensor]
    queries: Callable[[Tensor, Tensor | None], Tensor]
    refresh_proxies: Callable[[Tensor, Tensor | None, Tensor, Tensor | None], ProxyDrift]
    kernels: Kernels


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that a layer hook wants computed from its layer on: ``positions`` [R] sorted.

    Those that join bring their stored input ``x``; or, where the policy keeps inputs itself, those
    that it gives: ``inputs`` [n, D] of the sorted positions ``held`` [n]. All on the device.
    """

    positions: Tensor
    held: Tensor | None = None
    inputs: Tensor | None = None


class View:
    """Read-only look at one sequence."""

    def __init__(self, state: SequenceState) -> None:
        self._state = state

    @property
    def tokens(self) -> Tensor:
        """Token ids [T], masks included."""
        return self._state.tokens

    @property
    def is_mask(self) -> Tensor:
        """[T] bool, True where the canvas holds the mask."""
        return self._state.tokens == self._state.mask_id

    @property
    def length(self) -> int:
        """T, prompt and response together."""
        return self._state.tokens.shape[0]

    @property
    def prompt_length(self) -> int:
        """Length of the prompt; response positions are [prompt_length, length)."""
        return self._state.prompt_length

    @property
    def block(self) -> Block:
        """The block being decoded."""
        assert self._state.block is not None
        return self._state.block

    @property
    def eligible(self) -> Tensor:
        """Positions of the masks that may be committed now, sorted."""
        return self._state.eligible()

    @property
    def masks_at_entry(self) -> int:
        """Eligible masks when the block was entered."""
        return self._state.masks_at_entry

    @property
    def step(self) -> int:
        """Steps taken since the sequence began."""
        return self._state.step

    @property
    def block_step(self) -> int:
        """Steps taken since the block was entered."""
        return self._state.block_step

    @property
    def committed_last(self) -> Tensor:
        """Positions committed at the previous step, sorted."""
        return self._state.committed_last

    @property
    def committed_entropy(self) -> Tensor:
        """Entropy, in nats, of the distributions behind ``committed_last``; Needs.measures."""
        return self._state.committed_entropy

    @property
    def remasked_last(self) -> Tensor:
        """Positions that got their mask back at the previous step."""
        return self._state.remasked_last

    @property
    def computed_at(self) -> Tensor:
        """[T] step at which each row was last computed; -1 for never."""
        return self._state.computed_at

    @property
    def committed_at(self) -> Tensor:
        """[T] step at which each token was last committed; -1 for never (and for the prompt)."""
        return self._state.committed_at

    @property
    def mask_id(self) -> int:
        """Id of the mask token."""
        return self._state.mask_id

    @property
    def eos_id(self) -> int:
        """Id of the end-of-text token."""
        return self._state.eos_id

    @property
    def shifted(self) -> bool:
        """Whether the row of position p predicts the token at p + 1 (Dream), not at p."""
        return self._state.shifted

    @property
    def read_signals(self) -> frozenset[str]:
        """Names of the signals that some chosen part reads."""
        return self._state.read_signals

    @property
    def generator(self) -> torch.Generator:
        """The sequence's own random generator (CPU)."""
        return self._state.generator

    @property
    def attention(self) -> Mapping[int, Tensor]:
        """Read-outs of the last forward by layer, but those of kind "scores" (device)."""
        found = self._state.attention
        return {layer: out for layer, out in found.items() if not isinstance(out, Scores)}

    @property
    def scores(self) -> Mapping[int, Scores]:
        """Read-outs of kind "scores" of the last forward by layer (device)."""
        found = self._state.attention
        return {layer: scores for layer, scores in found.items() if isinstance(scores, Scores)}

    @property
    def kernels(self) -> Kernels:
        """The shared operations as the run chose them."""
        return self._state.kernels

    @property
    def signals(self) -> dict[str, Any]:
        """Named values that one part publishes and another reads."""
        return self._state.signals


class Sampler(ABC):
    """Decides what may be committed where and when."""

    @abstractmethod
    def next_block(self, view: View) -> Block | None:
        """The block to decode next, asked when the last has no mask left; None when done."""


class CachePolicy(ABC):
    """Decides which rows each forward computes. One instance per sequence."""

    needs = Needs()

    def begin(self, view: View) -> None:  # noqa: B027
        """Called once, before the first block."""

    def enter_block(self, view: View) -> None:  # noqa: B027
        """Called when a block has become the current one."""

    @abstractmethod
    def plan(self, view: View) -> Plan:
        """Rows of the next forward."""

    def on_layer(self, view: View, context: LayerContext) -> Rows | Tensor | None:
        """Rows to compute from this layer on (sorted), or None to keep them. Needs layer_hook."""
        return None

    def publish(self, view: View) -> None:  # noqa: B027
        """Called between forward and commit rule: the moment to write signals."""

    def after(self, view: View) -> None:  # noqa: B027
        """Called after the step's commits were applied."""


class CommitRule(ABC):
    """Decides which predicted tokens are committed or re-masked. One instance per sequence."""

    needs = Needs()

    @abstractmethod
    def select(self, view: View, prediction: Prediction) -> Commit:
        """What to write at this step."""
