"""One-line Python functions for a described formula, scored by running them.

A formula can be written in several equivalent ways: operands in either order, a product over a sum
factored or expanded. Any function that gives the right values is right.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dllmx.tasks import sandbox, split
from dllmx.tasks.problem import Example, Problem, Score

FUNCTIONS = ("f", "g", "h")
PARAMETERS = ("x", "y", "z", "n")
PHRASES = {"+": "add {n}", "-": "subtract {n}", "*": "multiply by {n}"}
WORDS = (
    "write a function of and add subtract multiply by take answer with the in one line nothing "
    "else : , . ( ) def return + - * f g h x y z n"
)
"""Words and signs of prompts and answers, numbers apart."""

CASES = ((0, 1), (1, 0), (2, 5), (7, 3), (-4, 6), (11, -9))
"""Arguments on which a function is judged; the first of a pair for functions of one argument."""

DEFINITION = re.compile(r"def\b.*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Scope:
    """Numbers of operations of a formula, each as often as it is drawn."""

    operations: tuple[int, ...] = (2, 2, 3)


SCOPE = Scope()
BROAD = Scope(operations=(2, 2, 3, 3, 4))
"""A harder scope for training; no problem is judged in it."""


@dataclass(frozen=True)
class Config(split.GeneratedConfig):
    """Settings of the task; see conf/task/tiny-code.yaml."""


@dataclass(frozen=True, slots=True)
class Formula:
    """``start`` and then operations (sign, operand), each applied to the value so far."""

    start: str
    operations: tuple[tuple[str, str], ...]

    def value(self, arguments: Mapping[str, int]) -> int:
        """The value for ``arguments`` by parameter name."""
        total = arguments[self.start]
        for sign, operand in self.operations:
            n = arguments[operand] if operand in arguments else int(operand)
            total = total + n if sign == "+" else total - n if sign == "-" else total * n
        return total


@dataclass(frozen=True, slots=True)
class Written:
    """Source of a part of a formula, its last sign ("" for an atom), and its two terms if a sum."""

    text: str
    sign: str = ""
    terms: tuple[str, ...] = ()

    def factor(self) -> str:
        """The text as one side of a product."""
        return f"( {self.text} )" if self.sign in ("+", "-") else self.text


class Task:
    """Held-out problems of one seed, scored by running the functions in a child process."""

    def __init__(self, config: Config) -> None:
        """Keep the settings; nothing is drawn yet."""
        self.config = config

    def problems(self) -> Sequence[Problem]:
        """The held-out problems."""
        config = self.config
        return split.held_out_problems("tiny-code", draw, config.seed, config.limit)

    def score(self, problem: Problem, text: str) -> Score:
        """Right when the function gives the reference value for every case."""
        return self.score_all([problem], [text])[0]

    def score_all(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Score]:
        """Scores of many outputs, run in one child process."""
        programs = [_program(problem, text) for problem, text in zip(problems, texts, strict=True)]
        verdicts = sandbox.run(programs)
        return [
            _judge(problem, program, verdict)
            for problem, program, verdict in zip(problems, programs, verdicts, strict=True)
        ]


def draw(rng: random.Random, scope: Scope = SCOPE) -> Example:
    """A random problem and one of its right answers."""
    function = rng.choice(FUNCTIONS)
    parameters = list(PARAMETERS)
    rng.shuffle(parameters)
    parameters = parameters[: rng.choice((1, 2))]
    formula = _draw_formula(rng, scope, parameters)
    steps = [PHRASES[sign].format(n=operand) for sign, operand in formula.operations]
    prompt = (
        f"write a function {function} of {' and '.join(parameters)}: "
        f"take {formula.start}, {', '.join(steps)}. "
        "answer with the function in one line and nothing else."
    )
    cases = [list(case[: len(parameters)]) for case in CASES]
    values = [formula.value(dict(zip(parameters, case, strict=True))) for case in cases]
    reference = {"name": function, "cases": cases, "values": values}
    head = f"def {function} ( {' , '.join(parameters)} ) : return"
    return Example(prompt, reference, f"{head} {write_formula(rng, formula)}")


def write_formula(rng: random.Random, formula: Formula) -> str:
    """One of the equivalent ways to write ``formula`` in Python."""
    written = Written(formula.start)
    for sign, operand in formula.operations:
        written = _write_operation(rng, written, sign, operand)
    return written.text


def _draw_formula(rng: random.Random, scope: Scope, parameters: Sequence[str]) -> Formula:
    signs = [rng.choice("++-**") for _ in range(rng.choice(scope.operations))]
    operands = [str(rng.randrange(2, 21)) for _ in signs]
    if len(parameters) == 2:
        operands[rng.randrange(len(operands))] = parameters[1]
    return Formula(parameters[0], tuple(zip(signs, operands, strict=True)))


def _write_operation(rng: random.Random, left: Written, sign: str, right: str) -> Written:
    if sign == "-":
        return Written(f"{left.text} - {right}", "-")
    if sign == "*" and left.terms and rng.random() < 1 / 3:
        first, second = left.terms
        return Written(f"{_either(rng, first, right)} + {_either(rng, second, right)}", "+")
    a, b = (left.factor(), right) if sign == "*" else (left.text, right)
    if rng.random() < 0.5:
        a, b = b, a
    terms = (a, b) if sign == "+" and not left.sign else ()
    return Written(f"{a} {sign} {b}", sign, terms)


def _either(rng: random.Random, a: str, b: str) -> str:
    return f"{a} * {b}" if rng.random() < 0.5 else f"{b} * {a}"


def _program(problem: Problem, text: str) -> sandbox.Program:
    found = DEFINITION.search(text)
    return sandbox.Program(
        source=found[0].strip() if found else text,
        name=problem.reference["name"],
        cases=tuple(tuple(case) for case in problem.reference["cases"]),
    )


def _judge(problem: Problem, program: sandbox.Program, verdict: sandbox.Verdict) -> Score:
    if verdict.values is None:
        return Score(False, program.source, {"reason": verdict.reason})
    expected = problem.reference["values"]
    if list(verdict.values) == expected:
        return Score(True, program.source)
    detail = {"reason": "wrong values", "values": list(verdict.values), "expected": expected}
    return Score(False, program.source, detail)
