"""Confidence intervals and the paired test for accuracies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist


@dataclass(frozen=True, slots=True)
class Interval:
    """A closed interval, ``low`` <= ``high``."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PairedCounts:
    """How often two runs agree on the same problems: both right, only one right, both wrong."""

    both: int
    only_first: int
    only_second: int
    neither: int

    @property
    def total(self) -> int:
        """Number of problems that both runs answered."""
        return self.both + self.only_first + self.only_second + self.neither


def wilson_interval(correct: int, total: int, level: float = 0.95) -> Interval:
    """Wilson's score interval for ``correct`` out of ``total``; [0, 1] when nothing was answered.

    Source: Wilson, "Probable inference, the law of succession, and statistical inference", 1927.
    """
    if total == 0:
        return Interval(0.0, 1.0)
    z = NormalDist().inv_cdf(0.5 + level / 2)
    share = correct / total
    scale = 1 + z * z / total
    centre = (share + z * z / (2 * total)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    low = 0.0 if correct == 0 else max(0.0, centre - half)
    high = 1.0 if correct == total else min(1.0, centre + half)
    return Interval(low, high)


def mcnemar_exact(only_first: int, only_second: int) -> float:
    """Two-sided exact p value that two paired accuracies are equal, from the discordant counts.

    Under equality each discordant problem falls to either side with probability 1/2.
    Source: McNemar 1947, in its exact binomial form.
    """
    discordant = only_first + only_second
    if discordant == 0:
        return 1.0
    tail = sum(math.comb(discordant, k) for k in range(min(only_first, only_second) + 1))
    return min(1.0, 2 * tail / 2**discordant)


def paired_difference_interval(counts: PairedCounts, level: float = 0.95) -> Interval:
    """Interval for (accuracy of the second run) - (accuracy of the first), same problems.

    Source: Newcombe, "Improved confidence intervals for the difference between binomial
    proportions based on paired data", 1998, method 10.
    """
    if counts.total == 0:
        return Interval(-1.0, 1.0)
    first, second = counts.both + counts.only_first, counts.both + counts.only_second
    p, q = second / counts.total, first / counts.total
    p_range, q_range = (wilson_interval(n, counts.total, level) for n in (second, first))
    correlation = _paired_correlation(counts)
    below = _joint_width(p - p_range.low, q_range.high - q, correlation)
    above = _joint_width(p_range.high - p, q - q_range.low, correlation)
    return Interval(p - q - below, p - q + above)


def _joint_width(a: float, b: float, correlation: float) -> float:
    return math.sqrt(max(0.0, a * a - 2 * correlation * a * b + b * b))


def _paired_correlation(counts: PairedCounts) -> float:
    first, second = counts.both + counts.only_first, counts.both + counts.only_second
    product = first * second * (counts.total - first) * (counts.total - second)
    if product == 0:
        return 0.0
    excess: float = counts.both * counts.neither - counts.only_first * counts.only_second
    if excess > 0:
        excess = max(0.0, excess - counts.total / 2)
    return excess / math.sqrt(product)
