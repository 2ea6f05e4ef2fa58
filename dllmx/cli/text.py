"""Numbers as people read them."""

from __future__ import annotations

ABSENT = "-"


def percent(value: float | None) -> str:
    """0.912 -> ``91.2 %``."""
    return ABSENT if value is None else f"{100 * value:.1f} %"


def fixed(value: float | None, digits: int) -> str:
    """A number with ``digits`` decimals."""
    return ABSENT if value is None else f"{value:.{digits}f}"


def factor(value: float | None) -> str:
    """2.5 -> ``x2.50``."""
    return ABSENT if value is None else f"x{value:.2f}"


def span(seconds: float) -> str:
    """A duration: ``45 s``, ``3 min 20 s``, ``2 h 05 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def memory(amount: float) -> str:
    """Bytes as ``512 MB`` or ``16.2 GB`` (powers of 1000)."""
    if amount < 1e9:
        return f"{amount / 1e6:.0f} MB"
    return f"{amount / 1e9:.1f} GB"
