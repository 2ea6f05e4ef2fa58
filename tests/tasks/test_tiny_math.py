"""The arithmetic of problems, their phrasings, and the scoring of answers."""

import random
import re

import pytest

from dllmx.tasks import tiny_math
from dllmx.tasks.problem import Problem

TASK = tiny_math.Task(tiny_math.Config("tiny-math"))
EQUATION = re.compile(r"(\d+) ([-+*=]) (\d+) ([-+*=]) (\d+)")


def drawn(count, scope=tiny_math.SCOPE):
    rng = random.Random(5)
    return [tiny_math.draw(rng, scope) for _ in range(count)]


def value(sign, left, right):
    return {"+": left + right, "-": left - right, "*": left * right}[sign]


@pytest.mark.parametrize("scope", [tiny_math.SCOPE, tiny_math.BROAD])
def test_every_equation_of_every_answer_is_true_and_the_last_gives_the_reference(scope):
    for example in drawn(400, scope):
        result = None
        for a, first, b, second, c in EQUATION.findall(example.answer):
            a, b, c = int(a), int(b), int(c)
            result = c if second == "=" else a
            assert result == (value(first, a, b) if second == "=" else value(second, b, c))
            assert 0 < result <= scope.total
        assert result == example.reference


def test_right_answers_score_right_and_fit_into_the_response():
    for example in drawn(400):
        problem = Problem("p", example.prompt, example.reference)
        assert TASK.score(problem, example.answer).correct
        assert len(example.answer.split()) < TASK.config.gen_length


def test_a_problem_has_several_phrasings():
    rng = random.Random(0)
    steps = [tiny_math.Step(3, "+", 4, 7), tiny_math.Step(7, "-", 2, 5)]
    answers = {tiny_math.write_answer(rng, steps, "tom", "pens") for _ in range(300)}
    assert len(answers) == 4 * 2 * 3


@pytest.mark.parametrize(
    ("text", "correct", "answer"),
    [
        ("3 + 4 = 7 . #### 7", True, "7"),
        ("7 = 4 + 3 . so tom has 7 pens . ####7", True, "7"),
        ("3+4=7. #### 7", True, "7"),
        ("3 + 4 = 7 . #### 8", False, "8"),
        ("3 + 4 = 8 . #### 7", False, "7"),
        ("3 + 4 + 4 . #### 7", False, "7"),
        ("3 = 4 = 7 . #### 7", False, "7"),
        ("3 + 4 = 7 . 7 + 1 = 9 . #### 7", False, "7"),
        ("so tom has 7 pens . #### 7", False, "7"),
        ("#### 7", False, "7"),
        ("3 + 4 = 7 .", False, None),
        ("3 + 4 = 7 . #### 8 #### 7", False, "8"),
        ("", False, None),
    ],
)
def test_final_number_and_working_must_both_be_right(text, correct, answer):
    score = TASK.score(Problem("p", "?", 7), text)
    assert (score.correct, score.answer) == (correct, answer)
