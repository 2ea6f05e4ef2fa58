"""Formulas, the equivalent ways to write them, and scoring by running."""

import random

import pytest

from dllmx.tasks import tiny_code
from dllmx.tasks.problem import Problem

TASK = tiny_code.Task(tiny_code.Config("tiny-code"))
FORMULA = tiny_code.Formula("x", (("+", "3"), ("*", "2"), ("-", "y")))
PROBLEM = Problem(
    "p",
    "?",
    {
        "name": "f",
        "cases": [list(case) for case in tiny_code.CASES],
        "values": [(x + 3) * 2 - y for x, y in tiny_code.CASES],
    },
)


@pytest.mark.parametrize("scope", [tiny_code.SCOPE, tiny_code.BROAD])
def test_drawn_answers_run_and_give_the_reference_values(scope):
    rng = random.Random(1)
    examples = [tiny_code.draw(rng, scope) for _ in range(600)]
    problems = [Problem("p", example.prompt, example.reference) for example in examples]
    scores = TASK.score_all(problems, [example.answer for example in examples])
    assert [score.detail for score in scores if not score.correct] == []
    assert max(len(example.answer.split()) for example in examples) < TASK.config.gen_length


def test_a_formula_is_applied_step_by_step():
    assert FORMULA.value({"x": 5, "y": 7}) == 9


def test_a_formula_has_many_equivalent_spellings():
    rng = random.Random(0)
    spellings = {tiny_code.write_formula(rng, FORMULA) for _ in range(400)}
    assert {"( x + 3 ) * 2 - y", "2 * ( 3 + x ) - y", "x * 2 + 3 * 2 - y"} <= spellings
    assert len(spellings) == 2 * 2 + 2 * 4


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("def f ( x , y ) : return ( x + 3 ) * 2 - y", True),
        ("sure : def f(a, b): return 2*a + 6 - b", True),
        ("def f ( x , y ) : return x + 3 * 2 - y", False),
        ("def g ( x , y ) : return ( x + 3 ) * 2 - y", False),
        ("def f ( x ) : return ( x + 3 ) * 2", False),
        ("def f ( x , y ) : return ( x + 3 * 2 - y", False),
        ("", False),
    ],
)
def test_a_function_is_right_when_its_values_are(text, right):
    assert TASK.score(PROBLEM, text).correct is right
