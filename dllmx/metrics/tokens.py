"""How the tokens of one answer are counted: one definition for every task and policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

TOKEN_DEFINITION = (
    "tokens_all: response ids that are not the mask; tokens_non_eos: those that are not "
    "end-of-text either, wherever they stand; tokens_after_stop: the non-EOS ids after the first "
    "end-of-text or end-of-turn id. The prompt never counts."
)


@dataclass(frozen=True, slots=True)
class SpecialIds:
    """The ids that counting has to know: end of text, end of turn (None: has none), mask."""

    eos_id: int
    eot_id: int | None
    mask_id: int

    @property
    def stop_ids(self) -> frozenset[int]:
        """The ids after which nothing belongs to the answer."""
        return frozenset(i for i in (self.eos_id, self.eot_id) if i is not None)


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Counts of one response; see ``TOKEN_DEFINITION``."""

    tokens_all: int
    tokens_non_eos: int
    tokens_after_stop: int


def eos_position(output_ids: Sequence[int], special: SpecialIds) -> int | None:
    """Index within the response of the first end-of-text or end-of-turn id; None: there is none."""
    stops = special.stop_ids
    return next((index for index, token in enumerate(output_ids) if token in stops), None)


def count_tokens(output_ids: Sequence[int], special: SpecialIds) -> TokenCounts:
    """Counts of a response ``output_ids``, the prompt excluded (``TOKEN_DEFINITION``)."""
    uncounted = (special.eos_id, special.mask_id)
    stop = eos_position(output_ids, special)
    after = output_ids[stop + 1 :] if stop is not None else ()
    return TokenCounts(
        tokens_all=sum(token != special.mask_id for token in output_ids),
        tokens_non_eos=sum(token not in uncounted for token in output_ids),
        tokens_after_stop=sum(token not in uncounted for token in after),
    )
