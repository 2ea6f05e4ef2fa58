"""What a kernel file declares so that it can be compiled without a GPU and held to a budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Variant:
    """One specialisation of a kernel as it is launched at a real size.

    ``signature``: Triton type of every argument by name ("*bf16", "i32", "constexpr");
    ``constants``: values of the constexpr ones; ``registers``: most registers a thread may use;
    ``warps``, ``stages``: of a program. Pointers are taken to be aligned to 16 bytes, and the
    integers named in ``aligned`` to be multiples of 16.
    """

    name: str
    kernel: Callable[..., Any]
    signature: Mapping[str, str]
    constants: Mapping[str, Any]
    registers: int
    warps: int = 4
    stages: int = 2
    aligned: tuple[str, ...] = ()
