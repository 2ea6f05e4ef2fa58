"""Problems from a JSONL file, scored by one of four rules.

``exact``: the answer is the reference, surrounding white space apart. ``contains``: the reference
occurs in the answer. ``number``: the number after ``####``, else the last one, equals the
reference. ``regex``: the reference is a regular expression that is found in the answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import regex

from dllmx.errors import ConfigError
from dllmx.tasks import split
from dllmx.tasks.problem import Problem, Score, check_encodable

KEYS = ("id", "prompt", "prompt_ids", "reference")
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
REGEX_SECONDS = 1.0
"""Longest search for one answer: patterns of a data file may backtrack without end."""

MARKED = re.compile(r"####\s*\$?\s*(-?\d[\d,]*(?:\.\d+)?)")


@dataclass(frozen=True)
class Config:
    """Settings of the task; see conf/task/jsonl.yaml."""

    name: str
    path: str
    rule: str = "exact"
    limit: int | None = None
    seed: int = 0
    gen_length: int = 128
    block_length: int = 32

    def __post_init__(self) -> None:
        """Check the rule and ranges; the file is read when the problems are asked for."""
        if self.rule not in RULES:
            raise ConfigError(f"task.rule={self.rule}: choose one of {', '.join(RULES)}.")
        split.check_common(self.limit, self.seed, self.gen_length, self.block_length)
        if self.seed != 0:
            raise ConfigError(f"task.seed={self.seed}: task=jsonl draws nothing; leave it at 0.")


class Task:
    """The problems of a file."""

    def __init__(self, config: Config) -> None:
        """Keep the settings; nothing is read yet."""
        self.config = config

    def problems(self) -> Sequence[Problem]:
        """The first ``limit`` problems. ConfigError names the file and the line that is wrong."""
        problems = read_problems(Path(self.config.path))
        for number, problem in problems:
            _check_reference(f"{self.config.path}, line {number}", self.config.rule, problem)
        return [problem for _, problem in problems[: self.config.limit]]

    def score(self, problem: Problem, text: str) -> Score:
        """The verdict of the rule."""
        return RULES[self.config.rule](str(problem.reference), text)


def read_problems(path: Path) -> list[tuple[int, Problem]]:
    """All problems of a file with their line numbers; blank lines are skipped."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"task.path={path} cannot be read: {error}.") from error
    problems: list[tuple[int, Problem]] = []
    first_lines: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        problem = _read_problem(where, number, line)
        if problem.id in first_lines:
            raise ConfigError(
                f"{where}: the id {problem.id!r} is already on line {first_lines[problem.id]}."
            )
        first_lines[problem.id] = number
        problems.append((number, problem))
    if not problems:
        raise ConfigError(f"task.path={path} holds no problem; write one JSON object a line.")
    return problems


def _read_problem(where: str, number: int, line: str) -> Problem:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where}: not JSON ({error}).") from error
    if not isinstance(entry, dict):
        raise ConfigError(f'{where}: not an object; write {{"prompt": ..., "reference": ...}}.')
    check_encodable(where, entry)
    unknown = [key for key in entry if key not in KEYS]
    if unknown:
        raise ConfigError(f"{where}: unknown key {unknown[0]!r}; known are {', '.join(KEYS)}.")
    if "reference" not in entry:
        raise ConfigError(f"{where}: no 'reference'.")
    prompt, prompt_ids = _read_prompt(where, entry)
    name = _read_id(where, entry.get("id", f"line-{number}"))
    return Problem(name, prompt, entry["reference"], prompt_ids)


def _read_id(where: str, name: object) -> str:
    if isinstance(name, bool) or not isinstance(name, str | int):
        raise ConfigError(f"{where}: 'id' is {name!r}; give a string or an integer.")
    return str(name)


def _read_prompt(where: str, entry: dict[str, Any]) -> tuple[str, tuple[int, ...] | None]:
    if ("prompt" in entry) == ("prompt_ids" in entry):
        raise ConfigError(f"{where}: give either 'prompt' or 'prompt_ids'.")
    if "prompt" in entry:
        if not isinstance(entry["prompt"], str) or not entry["prompt"]:
            raise ConfigError(f"{where}: 'prompt' must be a string that is not empty.")
        return entry["prompt"], None
    ids = entry["prompt_ids"]
    if not isinstance(ids, list) or not ids or any(type(i) is not int or i < 0 for i in ids):
        raise ConfigError(f"{where}: 'prompt_ids' must be a list of token ids >= 0.")
    return "", tuple(ids)


def _check_reference(where: str, rule: str, problem: Problem) -> None:
    reference = problem.reference
    if isinstance(reference, bool) or not isinstance(reference, str | int | float):
        raise ConfigError(f"{where}: 'reference' is {reference!r}; give a string or a number.")
    if rule == "number" and _as_number(str(reference)) is None:
        raise ConfigError(f"{where}: 'reference' is {reference!r}, not a number (rule=number).")
    if rule == "contains" and not str(reference):
        raise ConfigError(f"{where}: 'reference' is empty; every answer would contain it.")
    if rule == "regex":
        try:
            regex.compile(str(reference))
        except regex.error as error:
            raise ConfigError(f"{where}: 'reference' is no regular expression: {error}.") from error


def _as_number(text: str) -> Decimal | None:
    try:
        number = Decimal(text.replace(",", "").strip())
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _exact(reference: str, text: str) -> Score:
    return Score(text.strip() == reference.strip(), text.strip())


def _contains(reference: str, text: str) -> Score:
    found = reference in text
    return Score(found, reference if found else None)


def _number(reference: str, text: str) -> Score:
    marked = MARKED.search(text)
    numbers = [marked[1]] if marked else NUMBER.findall(text)
    if not numbers:
        return Score(False, None, {"reason": "no number"})
    return Score(_as_number(numbers[-1]) == _as_number(reference), numbers[-1])


def _regex(reference: str, text: str) -> Score:
    try:
        found = regex.search(reference, text, timeout=REGEX_SECONDS)
    except TimeoutError:
        return Score(False, None, {"reason": f"no match within {REGEX_SECONDS} s"})
    return Score(found is not None, found[0] if found else None)


RULES: dict[str, Callable[[str, str], Score]] = {
    "exact": _exact,
    "contains": _contains,
    "number": _number,
    "regex": _regex,
}
