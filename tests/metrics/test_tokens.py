from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dllmx.metrics.tokens import SpecialIds, TokenCounts, count_tokens, eos_position

EOS, EOT, MASK = 2, 5, 3
SPECIAL = SpecialIds(EOS, EOT, MASK)


@pytest.mark.parametrize(
    ("output_ids", "counts"),
    [
        ([10, 11, 12], TokenCounts(3, 3, 0)),
        ([10, 11, EOS, EOS], TokenCounts(4, 2, 0)),
        ([10, EOS, 11, EOS, 12], TokenCounts(5, 3, 2)),
        ([10, EOT, EOS, 11], TokenCounts(4, 3, 1)),
        ([EOS, EOS, EOS], TokenCounts(3, 0, 0)),
        ([10, EOS, MASK, MASK], TokenCounts(2, 1, 0)),
        ([], TokenCounts(0, 0, 0)),
    ],
)
def test_counts_of_hand_made_answers(output_ids: list[int], counts: TokenCounts) -> None:
    assert count_tokens(output_ids, SPECIAL) == counts


@pytest.mark.parametrize(
    ("output_ids", "position"), [([10, EOS], 1), ([EOT, EOS], 0), ([10, 11], None), ([], None)]
)
def test_the_stop_position_is_that_of_the_first_end_of_text_or_turn(
    output_ids: list[int], position: int | None
) -> None:
    assert eos_position(output_ids, SPECIAL) == position


def test_without_an_end_of_turn_id_only_end_of_text_stops() -> None:
    assert eos_position([EOT, EOS], SpecialIds(EOS, None, MASK)) == 1


@given(st.lists(st.sampled_from([EOS, EOT, MASK, 10, 11])))
def test_counts_never_exceed_each_other(output_ids: list[int]) -> None:
    counts = count_tokens(output_ids, SPECIAL)
    assert len(output_ids) >= counts.tokens_all >= counts.tokens_non_eos
    assert counts.tokens_non_eos >= counts.tokens_after_stop
