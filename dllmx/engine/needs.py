"""What a part asks of the engine, and what it gets to read of the attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttentionRequest:
    """Attention probabilities over all T positions that the engine is to read out.

    ``kind``: "rows" gives [R', T] for the computed rows of the block, "mean_map" [R, T] for all
    computed rows, "column_sums" [T] their sum over rows, all averaged over heads; "head_rows"
    gives [H, R', T] for the computed rows of the block, and "scores" the same as the ``Scores``
    that it follows from. ``layers``: which, -1 being the last; None means all.
    """

    kind: str
    layers: tuple[int, ...] | None = None


class Scores(NamedTuple):
    """Attention of the block's rows without its probabilities, which are as wide as the canvas.

    ``q`` [H, R', h], ``keys`` [G, T, h] (a copy), ``log_sum_exp`` [H, R'] float32 of the scores
    q k / sqrt(h).
    """

    q: Tensor
    keys: Tensor
    log_sum_exp: Tensor

    @property
    def probabilities(self) -> Tensor:
        """[H, R', T] float32."""
        return head_probabilities(self.q, self.keys)


def head_probabilities(q: Tensor, keys: Tensor) -> Tensor:
    """Attention [H, R, T] float32 of ``q`` [H, R, h] over ``keys`` [G, T, h], head by head."""
    heads, rows, size = q.shape
    grouped = q.float().reshape(keys.shape[0], -1, size)  # heads that share keys, one after another
    scores = grouped @ keys.float().transpose(1, 2) / size**0.5
    return scores.softmax(-1).view(heads, rows, -1)


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the size of a part's own tensors depends on, for one sequence.

    ``width`` D, ``heads`` H, ``kv_heads`` G, ``head_dim`` h; ``value_bytes`` of a weight or an
    activation; ``length`` T of the canvas; ``block_length`` the most positions of a block.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    value_bytes: int
    length: int
    block_length: int


def holds_nothing(sizes: Sizes) -> int:
    """0: the part keeps no tensors on the device."""
    return 0


@dataclass(frozen=True, slots=True)
class Needs:
    """What a part asks of the engine, read once before the model loads.

    ``store``: named tensors kept for every layer and position, of k, v, k_unrotated, x (layer
    input), q, attn_out, mlp_out. ``layer_hook``: ``on_layer`` is called at every layer.
    ``attention``: a read-out. ``measures``: what the part reads of a prediction besides token and
    confidence (entropy, margin, current). ``steps``: the part follows the schedule of
    ``sampler.steps``. ``read``: for which positions predictions are wanted: eligible masks, all of
    the block, all response positions up to its end, or all masks ("block_masks", "block",
    "response", "masks"); "partial_masks" is all masks, but in a full forward the eligible ones
    only. ``replaces``: the rule may overwrite tokens. ``reads``, ``publishes``: names of signals.
    ``held``: bytes that the part's own tensors take on the device, at most.
    """

    store: frozenset[str] = frozenset()
    layer_hook: bool = False
    attention: AttentionRequest | None = None
    measures: frozenset[str] = frozenset()
    steps: bool = False
    read: str = "block_masks"
    replaces: bool = False
    reads: frozenset[str] = frozenset()
    publishes: frozenset[str] = frozenset()
    held: Callable[[Sizes], int] = holds_nothing
