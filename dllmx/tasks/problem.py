"""What a task hands out and what it gives back."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from dllmx.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem. ``reference`` is what scoring needs and can be written as JSON.

    ``prompt_ids`` replaces the tokenised ``prompt`` where the file gives ids.
    """

    id: str
    prompt: str
    reference: Any
    prompt_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """Whether an output is right, the answer read from it, and what explains the verdict."""

    correct: bool
    answer: str | None
    detail: dict[str, Any] = field(default_factory=dict)


def check_encodable(where: str, entry: Any) -> None:
    """Raise ConfigError if a string of a JSON value holds half of a surrogate pair.

    JSON's escapes can write one, and no file or tokenizer takes it.
    """
    try:
        json.dumps(entry, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start].encode("unicode_escape").decode()
        raise ConfigError(
            f"{where}: {half} is half of a surrogate pair, not a character."
        ) from None


@dataclass(frozen=True, slots=True)
class Example:
    """A problem with one of its right answers, written out: what training learns from."""

    prompt: str
    reference: Any
    answer: str
