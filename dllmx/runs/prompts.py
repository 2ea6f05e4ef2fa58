"""Files of prompts for ``dllmx decode``: read and checked as a whole before any model loads."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dllmx.errors import ConfigError
from dllmx.tasks.problem import check_encodable

ALLOWED = ("id", "prompt", "prompt_ids", "seed")
FORMAT = (
    'Each line is {"id": ..., "prompt": "text"} or {"id": ..., "prompt_ids": [ids]}, '
    'with "seed": n where its random draws are to be those of torch.manual_seed(n)'
)
LARGEST_SEED = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: text, or token ids. ``id`` is given back as it came (string or integer).

    ``seed`` of its random draws; None: from the run's seed and the id.
    """

    id: str | int
    text: str | None
    ids: list[int] | None
    line: int
    seed: int | None = None


def parse_prompts(lines: Iterable[str], source: str) -> list[Prompt]:
    """The prompts in ``lines``, empty lines left out.

    Raises ConfigError with the name ``source`` and the line number for a line that is not as
    ``FORMAT`` says, for an id that comes twice, and when there is no prompt at all.
    """
    numbered = enumerate(lines, start=1)
    prompts = [_parse(line, f"{source} line {n}", n) for n, line in numbered if line.strip()]
    if not prompts:
        raise ConfigError(f"{source} has no prompts. {FORMAT}.")
    first_lines: dict[str, int] = {}
    for prompt in prompts:
        first = first_lines.setdefault(str(prompt.id), prompt.line)
        if first != prompt.line:
            raise ConfigError(
                f"{source} line {prompt.line}: id {prompt.id} is that of line {first}"
            )
    return prompts


def check_vocabulary(prompts: Iterable[Prompt], vocab: int, source: str) -> None:
    """Raise ConfigError when a prompt has ids outside [0, ``vocab``)."""
    for prompt in prompts:
        wrong = [token for token in prompt.ids or () if token >= vocab]
        if wrong:
            raise ConfigError(
                f"{source} line {prompt.line}: id {wrong[0]} in prompt_ids; "
                f"the model's ids are 0 to {vocab - 1}"
            )


def _parse(line: str, where: str, number: int) -> Prompt:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where} is not JSON: {error}. {FORMAT}.") from None
    if not isinstance(entry, dict):
        raise ConfigError(f"{where} is not a JSON object. {FORMAT}.")
    check_encodable(where, entry)
    unknown = sorted(set(entry) - set(ALLOWED))
    if unknown:
        raise ConfigError(f"{where} has the unknown key {unknown[0]!r}. {FORMAT}.")
    if isinstance(entry.get("id"), bool) or not isinstance(entry.get("id"), (str, int)):
        raise ConfigError(f"{where} needs an id, a string or an integer. {FORMAT}.")
    if ("prompt" in entry) == ("prompt_ids" in entry):
        raise ConfigError(f"{where} needs either prompt or prompt_ids. {FORMAT}.")
    text, ids = entry.get("prompt"), entry.get("prompt_ids")
    if ids is None and not isinstance(text, str):
        raise ConfigError(f"{where}: prompt must be a string.")
    if text is None and not _are_ids(ids):
        raise ConfigError(f"{where}: prompt_ids must be a list of token ids, 0 or more.")
    seed = entry.get("seed")
    if "seed" in entry and not (type(seed) is int and 0 <= seed <= LARGEST_SEED):
        raise ConfigError(f"{where}: seed must be a whole number from 0 to {LARGEST_SEED}.")
    return Prompt(entry["id"], text, ids, number, seed)


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
