from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dllmx.metrics.intervals import (
    PairedCounts,
    mcnemar_exact,
    paired_difference_interval,
    wilson_interval,
)


@pytest.mark.parametrize(
    ("correct", "total", "low", "high"),
    [
        (8, 10, 0.4902, 0.9433),
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (50, 100, 0.4038, 0.5962),
    ],
)
def test_wilson_interval_equals_published_values(
    correct: int, total: int, low: float, high: float
) -> None:
    interval = wilson_interval(correct, total)
    assert interval.low == pytest.approx(low, abs=1e-4)
    assert interval.high == pytest.approx(high, abs=1e-4)


def test_nothing_answered_says_nothing() -> None:
    assert (wilson_interval(0, 0).low, wilson_interval(0, 0).high) == (0.0, 1.0)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_interval_holds_the_share(drawn: tuple[int, int]) -> None:
    correct, total = drawn
    interval = wilson_interval(correct, total)
    assert 0 <= interval.low <= correct / total <= interval.high <= 1


@pytest.mark.parametrize(
    ("only_first", "only_second", "p_value"),
    [(0, 0, 1.0), (5, 5, 1.0), (0, 5, 0.0625), (1, 9, 22 / 1024), (9, 1, 22 / 1024), (0, 1, 1.0)],
)
def test_mcnemar_equals_the_binomial_by_hand(
    only_first: int, only_second: int, p_value: float
) -> None:
    assert mcnemar_exact(only_first, only_second) == pytest.approx(p_value)


def test_paired_interval_equals_newcombes_own_example() -> None:
    # Table II of the 1998 paper: 36 both, 12 only one way, 2 only the other, 0 neither.
    interval = paired_difference_interval(PairedCounts(36, 2, 12, 0))
    assert interval.low == pytest.approx(0.0569, abs=5e-4)
    assert interval.high == pytest.approx(0.3404, abs=5e-4)


def test_agreement_narrows_the_paired_interval_less_its_correction() -> None:
    # Worked by hand: phi = (10 * 15 - 2 * 3 - 30 / 2) / sqrt(12 * 13 * 18 * 17).
    interval = paired_difference_interval(PairedCounts(10, 2, 3, 15))
    assert interval.low == pytest.approx(-0.119653, abs=1e-6)
    assert interval.high == pytest.approx(0.183250, abs=1e-6)


@given(*[st.integers(0, 60)] * 4)
def test_paired_interval_holds_the_difference_and_mirrors(a: int, b: int, c: int, d: int) -> None:
    total = max(1, a + b + c + d)
    interval = paired_difference_interval(PairedCounts(a, b, c, d))
    mirrored = paired_difference_interval(PairedCounts(a, c, b, d))
    assert interval.low - 1e-9 <= (c - b) / total <= interval.high + 1e-9
    assert interval.low == pytest.approx(-mirrored.high)
