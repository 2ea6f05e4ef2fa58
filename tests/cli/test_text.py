from __future__ import annotations

import pytest

from dllmx.cli.text import factor, fixed, memory, percent, span


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0 s"), (59.4, "59 s"), (60, "1 min 00 s"), (125, "2 min 05 s"), (7500, "2 h 05 min")],
)
def test_spans(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_numbers_and_their_absence() -> None:
    assert (percent(0.9123), percent(None)) == ("91.2 %", "-")
    assert (fixed(2.345, 2), fixed(None, 2)) == ("2.35", "-")
    assert (factor(0.5), factor(None)) == ("x0.50", "-")
    assert (memory(512e6), memory(16.2e9)) == ("512 MB", "16.2 GB")
