"""Short list tasks: some with one right answer, some with many, scored by their constraint.

copy, reverse and sort are determined. shuffle (any order), replace (exactly one item, no matter
which) and square (a 3 x 3 latin square with holes) leave a choice, and the choices depend on each
other.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dllmx.tasks import split
from dllmx.tasks.problem import Example, Problem, Score

KINDS = {"copy": 1, "reverse": 1, "sort": 2, "shuffle": 4, "replace": 4, "square": 4}
"""How often each kind is drawn."""

LARGEST = 40
HOLE = "_"
OPENING = "here is a list of numbers: {list}."
ENDING = "answer with the list in brackets and nothing else."
PROMPTS = {
    "copy": f"{OPENING} write the same items in the same order. {ENDING}",
    "reverse": f"{OPENING} write its items from the last to the first. {ENDING}",
    "sort": f"{OPENING} write its items from the smallest to the largest. {ENDING}",
    "shuffle": f"{OPENING} write all of its items in any order, each of them once. {ENDING}",
    "replace": f"{OPENING} replace any one of its items with {{new}} and keep all others. {ENDING}",
    "square": "complete the latin square {list} with {symbols}, each once in every row and column. "
    "answer with the square in brackets and nothing else.",
}
FREE_REPLACE = f"{OPENING} replace any one of its items and keep all others. {ENDING}"
WORDS = (
    "here is a list of numbers write the same items in order its from last to first smallest "
    "largest all any each them once replace one with and keep others complete latin square every "
    "row column answer brackets nothing else [ ] , ; . : _"
)
"""Words and signs of prompts and answers, numbers apart."""

BRACKETS = re.compile(r"\[([^\[\]]*)\]")


@dataclass(frozen=True, slots=True)
class Scope:
    """Lengths of lists, the item that replaces another (None: any), symbols of squares."""

    lengths: range = range(4, 8)
    new: int | None = 0
    symbols: tuple[int, ...] = (1, 2, 3)


SCOPE = Scope()
BROAD = Scope(lengths=range(5, 9), new=None, symbols=tuple(range(1, 10)))
"""A harder scope in which training begins; no problem is judged in it."""


@dataclass(frozen=True)
class Config(split.GeneratedConfig):
    """Settings of the task; see conf/task/tiny-lists.yaml."""


class Task:
    """Held-out problems of one seed, each scored by the constraint of its kind."""

    def __init__(self, config: Config) -> None:
        """Keep the settings; nothing is drawn yet."""
        self.config = config

    def problems(self) -> Sequence[Problem]:
        """The held-out problems."""
        config = self.config
        return split.held_out_problems("tiny-lists", draw, config.seed, config.limit)

    def score(self, problem: Problem, text: str) -> Score:
        """Right when the first bracketed list meets the constraint of the problem's kind."""
        kind = problem.reference["kind"]
        found = BRACKETS.search(text)
        if found is None:
            return Score(False, None, {"kind": kind, "reason": "no list in brackets"})
        rows = read_rows(found[1])
        if rows is None:
            return Score(False, found[0], {"kind": kind, "reason": "not a list of numbers"})
        return Score(CHECKS[kind](problem.reference, rows), found[0], {"kind": kind})


def draw(rng: random.Random, scope: Scope = SCOPE) -> Example:
    """A random problem and one of its right answers."""
    kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
    if kind == "square":
        return _draw_square(rng, scope)
    if kind == "replace":
        return _draw_replace(rng, scope)
    items = draw_items(rng, rng.choice(scope.lengths))
    prompt = PROMPTS[kind].format(list=write_rows([items]))
    return Example(prompt, {"kind": kind, "items": items}, _answer(rng, kind, items))


def draw_items(rng: random.Random, count: int) -> list[int]:
    """``count`` different numbers."""
    pool = list(range(1, LARGEST + 1))
    rng.shuffle(pool)
    return pool[:count]


def write_rows(rows: Sequence[Sequence[object]]) -> str:
    """``[ 1 , 2 ; 3 , 4 ]`` for two rows."""
    return f"[ {' ; '.join(' , '.join(map(str, row)) for row in rows)} ]"


def read_rows(inside: str) -> list[list[int]] | None:
    """The rows between the brackets, or None when something is not a number."""
    cells = [[cell.strip() for cell in row.split(",")] for row in inside.split(";")]
    if not all(cell.isascii() and cell.isdigit() for row in cells for cell in row):
        return None
    return [[int(cell) for cell in row] for row in cells]


def _answer(rng: random.Random, kind: str, items: list[int]) -> str:
    answer = list(items)
    if kind == "reverse":
        answer.reverse()
    elif kind == "sort":
        answer.sort()
    elif kind == "shuffle":
        rng.shuffle(answer)
    return write_rows([answer])


def _draw_replace(rng: random.Random, scope: Scope) -> Example:
    items = draw_items(rng, rng.randrange(4, 7))
    others = [n for n in range(1, LARGEST + 1) if n not in items]
    new = rng.choice(others) if scope.new is None else scope.new
    answer = list(items)
    answer[rng.randrange(len(items))] = new
    template = FREE_REPLACE if scope.new is None else PROMPTS["replace"]
    prompt = template.format(list=write_rows([items]), new=new)
    reference = {"kind": "replace", "items": items, "new": scope.new}
    return Example(prompt, reference, write_rows([answer]))


def _draw_square(rng: random.Random, scope: Scope) -> Example:
    symbols = list(scope.symbols)
    rng.shuffle(symbols)
    symbols = symbols[:3]
    turn = rng.choice((1, 2))
    square = [[symbols[(column + turn * row) % 3] for column in range(3)] for row in range(3)]
    cells = [(row, column) for row in range(3) for column in range(3)]
    rng.shuffle(cells)
    kept = set(cells[: rng.randrange(1, 4)])
    given = [
        [square[row][column] if (row, column) in kept else HOLE for column in range(3)]
        for row in range(3)
    ]
    reference = {"kind": "square", "given": given, "symbols": sorted(symbols)}
    prompt = PROMPTS["square"].format(
        list=write_rows(given), symbols=" , ".join(map(str, sorted(symbols)))
    )
    return Example(prompt, reference, write_rows(square))


def _is_square(reference: dict[str, Any], rows: list[list[int]]) -> bool:
    symbols, given = reference["symbols"], reference["given"]
    lines = [*rows, *zip(*rows, strict=False)]
    if [len(row) for row in rows] != [3, 3, 3] or any(sorted(line) != symbols for line in lines):
        return False
    return all(
        known in (HOLE, cell)
        for known_row, row in zip(given, rows, strict=True)
        for known, cell in zip(known_row, row, strict=True)
    )


def _one_changed(reference: dict[str, Any], rows: list[list[int]]) -> bool:
    items = reference["items"]
    if len(rows) != 1 or len(rows[0]) != len(items):
        return False
    changed = [new for old, new in zip(items, rows[0], strict=True) if old != new]
    return len(changed) == 1 and reference["new"] in (None, changed[0])


CHECKS: dict[str, Callable[[dict[str, Any], list[list[int]]], bool]] = {
    "copy": lambda reference, rows: rows == [reference["items"]],
    "reverse": lambda reference, rows: rows == [reference["items"][::-1]],
    "sort": lambda reference, rows: rows == [sorted(reference["items"])],
    "shuffle": lambda reference, rows: (
        len(rows) == 1 and sorted(rows[0]) == sorted(reference["items"])
    ),
    "replace": _one_changed,
    "square": _is_square,
}
