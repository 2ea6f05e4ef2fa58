"""Word problems of one to three steps of arithmetic, written out, then ``#### answer``.

An answer is right when its last number is and its working holds. An equation may be written in
several equally good ways (order of the operands, side of the result) and so may the closing
sentence, so that an answer is constrained but not determined.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from dllmx.tasks import split
from dllmx.tasks.problem import Example, Problem, Score

PRONOUNS = {
    "tom": "he", "ben": "he", "sam": "he", "max": "he",
    "anna": "she", "lily": "she", "mia": "she", "zoe": "she",
}  # fmt: skip
THINGS = ("apples", "books", "coins", "cards", "shells", "stones", "pens", "stars")
GAINS = ("buys {n} more", "finds {n} more", "gets {n} more")
LOSSES = ("gives {n} away", "loses {n}", "sells {n}")
WORDS = (
    f"{' '.join(PRONOUNS)} {' '.join(THINGS)} he she has boxes with each then buys finds gets more "
    "gives away loses sells times as many how does have ? so that makes the answer is "
    "+ - * = . ####"
)
"""Words and signs of prompts and answers, numbers apart."""

LEAST = {"+": 1, "-": 1, "*": 2}
"""Smallest second operand."""

ANSWER = re.compile(r"####\s*(-?\d+)")
FORWARD = re.compile(r"(\d+) ?([-+*]) ?(\d+) ?= ?(\d+)")
BACKWARD = re.compile(r"(\d+) ?= ?(\d+) ?([-+*]) ?(\d+)")


@dataclass(frozen=True, slots=True)
class Scope:
    """Largest numbers: any total, the first amount, boxes and their content, a sum's change."""

    total: int = 30
    start: int = 20
    boxes: int = 5
    change: int = 5


SCOPE = Scope()
BROAD = Scope(total=60, start=35, boxes=7, change=9)
"""A harder scope in which training begins; no problem is judged in it."""


@dataclass(frozen=True)
class Config(split.GeneratedConfig):
    """Settings of the task; see conf/task/tiny-math.yaml."""


@dataclass(frozen=True, slots=True)
class Step:
    """One operation ``left sign right = result``."""

    left: int
    sign: str
    right: int
    result: int


class Task:
    """Held-out problems of one seed, scored on the final number and on the equations."""

    def __init__(self, config: Config) -> None:
        """Keep the settings; nothing is drawn yet."""
        self.config = config

    def problems(self) -> Sequence[Problem]:
        """The held-out problems."""
        config = self.config
        return split.held_out_problems("tiny-math", draw, config.seed, config.limit)

    def score(self, problem: Problem, text: str) -> Score:
        """Right when the number after ``####`` is the reference and the working holds."""
        working, mark, _ = text.partition("####")
        found = ANSWER.search(text)
        if not mark or found is None:
            return Score(False, None, {"reason": "no number after ####"})
        final, sound = int(found[1]) == problem.reference, is_sound(working)
        detail = {"reference": problem.reference, "final": final, "working": sound}
        return Score(final and sound, found[1], detail)


def is_sound(working: str) -> bool:
    """True when there is an equation and every sentence with a sign in it is a true equation."""
    sentences = [sentence.strip() for sentence in working.split(".")]
    equations = [sentence for sentence in sentences if any(sign in sentence for sign in "+-*=")]
    return bool(equations) and all(is_true(equation) for equation in equations)


def is_true(equation: str) -> bool:
    """True for ``3 + 4 = 7`` and ``7 = 3 + 4``, with one operation and whole numbers."""
    if found := FORWARD.fullmatch(equation):
        left, sign, right, result = found.groups()
    elif found := BACKWARD.fullmatch(equation):
        result, left, sign, right = found.groups()
    else:
        return False
    a, b = int(left), int(right)
    return int(result) == {"+": a + b, "-": a - b, "*": a * b}[sign]


def draw(rng: random.Random, scope: Scope = SCOPE) -> Example:
    """A random problem and one of its right answers."""
    name, thing = rng.choice(list(PRONOUNS)), rng.choice(THINGS)
    total, opening, steps = _draw_opening(rng, scope, name, thing)
    sentences = [opening]
    for _ in range(rng.choice((1, 2, 2, 3, 3)) - len(steps)):
        step, sentence = _draw_event(rng, scope, total, PRONOUNS[name])
        total = step.result
        steps.append(step)
        sentences.append(sentence)
    prompt = " ".join([*sentences, f"how many {thing} does {name} have?"])
    return Example(prompt, total, write_answer(rng, steps, name, thing))


def write_answer(rng: random.Random, steps: Sequence[Step], name: str, thing: str) -> str:
    """Equations, closing sentence and ``#### total``, in a random phrasing."""
    total = steps[-1].result
    closing = rng.choice(
        (f"so {name} has {total} {thing} .", f"that makes {total} {thing} .",
         f"the answer is {total} .")
    )  # fmt: skip
    equations = " ".join(_write_step(rng, step) for step in steps)
    return f"{equations} {closing} #### {total}"


def _write_step(rng: random.Random, step: Step) -> str:
    left, right = step.left, step.right
    if step.sign != "-" and rng.random() < 0.5:
        left, right = right, left
    operation = f"{left} {step.sign} {right}"
    if rng.random() < 0.5:
        return f"{operation} = {step.result} ."
    return f"{step.result} = {operation} ."


def _draw_opening(
    rng: random.Random, scope: Scope, name: str, thing: str
) -> tuple[int, str, list[Step]]:
    if rng.random() < 0.25:
        boxes, each = (rng.randrange(2, scope.boxes + 1) for _ in range(2))
        step = Step(boxes, "*", each, boxes * each)
        return step.result, f"{name} has {boxes} boxes with {each} {thing} each.", [step]
    start = rng.randrange(2, scope.start + 1)
    return start, f"{name} has {start} {thing}.", []


def _draw_event(rng: random.Random, scope: Scope, total: int, pronoun: str) -> tuple[Step, str]:
    sign = rng.choice([sign for sign in "++--*" if _largest(scope, sign, total) >= LEAST[sign]])
    n = rng.randrange(LEAST[sign], _largest(scope, sign, total) + 1)
    if sign == "*":
        return Step(total, sign, n, total * n), f"then {pronoun} has {n} times as many."
    event = rng.choice(GAINS if sign == "+" else LOSSES).format(n=n)
    result = total + n if sign == "+" else total - n
    return Step(total, sign, n, result), f"{pronoun} {event}."


def _largest(scope: Scope, sign: str, total: int) -> int:
    """The largest second operand that keeps the total in its scope."""
    if sign == "*":
        return min(3, scope.total // total)
    return min(scope.change, scope.total - total if sign == "+" else total - 1)
