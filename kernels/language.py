"""Triton's names for the kernel files, and stand-ins where triton is not installed.

Kernel files import ``jit`` and ``tl`` from here, so that their PyTorch twins work anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    import triton
    import triton.language as tl

    HAS_TRITON = True
except ImportError:
    triton, tl, HAS_TRITON = None, None, False


def jit(function: Callable[..., Any]) -> Any:
    """``triton.jit``, or the plain function where triton is missing (it is never launched)."""
    return triton.jit(function) if HAS_TRITON else function


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least ``n`` (1 or more)."""
    return 1 << max(n - 1, 0).bit_length()
