"""Lists are judged by the constraint of their kind, not by one written solution."""

import random

import pytest

from dllmx.tasks import tiny_lists
from dllmx.tasks.problem import Problem

TASK = tiny_lists.Task(tiny_lists.Config("tiny-lists"))
SQUARE = {"kind": "square", "given": [["_", 2, "_"], ["_", "_", "_"], ["_", "_", 2]],
          "symbols": [1, 2, 3]}  # fmt: skip


def verdict(reference, text):
    return TASK.score(Problem("p", "?", reference), text).correct


def listed(kind):
    return {"kind": kind, "items": [5, 1, 9, 4], "new": 0}


@pytest.mark.parametrize("scope", [tiny_lists.SCOPE, tiny_lists.BROAD])
def test_drawn_answers_are_right_and_all_kinds_occur(scope):
    rng = random.Random(2)
    kinds = set()
    for _ in range(400):
        example = tiny_lists.draw(rng, scope)
        kinds.add(example.reference["kind"])
        assert verdict(example.reference, example.answer), example
        assert len(example.answer.split()) < TASK.config.gen_length
    assert kinds == set(tiny_lists.KINDS)


@pytest.mark.parametrize(
    ("kind", "text", "right"),
    [
        ("copy", "[ 5 , 1 , 9 , 4 ]", True),
        ("copy", "[5,1,9,4] and more", True),
        ("copy", "[ 5 , 1 , 4 , 9 ]", False),
        ("copy", "[ 5 , 1 ; 9 , 4 ]", False),
        ("reverse", "[ 4 , 9 , 1 , 5 ]", True),
        ("reverse", "[ 5 , 1 , 9 , 4 ]", False),
        ("sort", "[ 1 , 4 , 5 , 9 ]", True),
        ("sort", "[ 1 , 4 , 5 ]", False),
        ("shuffle", "[ 9 , 4 , 5 , 1 ]", True),
        ("shuffle", "[ 9 , 9 , 5 , 1 ]", False),
        ("shuffle", "[ 9 , 5 , 1 ]", False),
        ("replace", "[ 5 , 1 , 9 , 0 ]", True),
        ("replace", "[ 5 , 0 , 9 , 4 ]", True),
        ("replace", "[ 5 , 1 , 9 , 7 ]", False),
        ("replace", "[ 5 , 1 , 9 , 4 ]", False),
        ("replace", "[ 5 , 1 , 0 , 0 ]", False),
        ("replace", "[ 5 , 1 , 9 ]", False),
        ("replace", "[ 5 , , 9 , 4 ]", False),
        ("copy", "5 , 1 , 9 , 4", False),
        ("copy", "[ ]", False),
    ],
)
def test_each_kind_has_its_own_constraint(kind, text, right):
    assert verdict(listed(kind), text) is right


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("[ 1 , 2 , 3 ; 2 , 3 , 1 ; 3 , 1 , 2 ]", True),
        ("[ 3 , 2 , 1 ; 2 , 1 , 3 ; 1 , 3 , 2 ]", True),
        ("[ 2 , 1 , 3 ; 1 , 3 , 2 ; 3 , 2 , 1 ]", False),
        ("[ 1 , 2 , 3 ; 1 , 2 , 3 ; 3 , 1 , 2 ]", False),
        ("[ 1 , 2 , 3 ; 2 , 3 , 1 ]", False),
        ("[ 1 , 2 , 3 ; 2 , 3 , 1 ; 3 , 1 , 2 ; 1 , 2 , 3 ]", False),
        ("[ 1 , 2 , 3 , 2 , 3 , 1 , 3 , 1 , 2 ]", False),
    ],
)
def test_any_latin_square_that_keeps_the_given_cells_is_right(text, right):
    assert verdict(SQUARE, text) is right


def test_a_free_replacement_takes_any_other_number():
    free = {"kind": "replace", "items": [5, 1, 9, 4], "new": None}
    assert verdict(free, "[ 5 , 1 , 7 , 4 ]")
    assert not verdict(free, "[ 5 , 1 , 9 , 4 ]")


def test_some_squares_have_more_than_one_completion():
    rng = random.Random(0)
    answers: dict[str, set[str]] = {}
    for _ in range(30000):
        example = tiny_lists.draw(rng)
        if example.reference["kind"] == "square":
            answers.setdefault(example.prompt, set()).add(example.answer)
    assert any(len(found) > 1 for found in answers.values())
