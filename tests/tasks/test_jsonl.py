"""Files of problems: what is read, how it is scored, and what is said about a bad line."""

import json

import pytest

from dllmx.errors import ConfigError
from dllmx.tasks import jsonl
from dllmx.tasks.problem import Problem


def task(tmp_path, *lines, **keys):
    path = tmp_path / "problems.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return jsonl.Task(jsonl.Config("jsonl", str(path), **keys))


def test_prompts_ids_and_references_are_read_in_order(tmp_path):
    lines = [
        json.dumps({"id": "a", "prompt": "one?", "reference": 1}),
        "",
        json.dumps({"prompt_ids": [4, 5], "reference": "x"}),
    ]
    assert task(tmp_path, *lines).problems() == [
        Problem("a", "one?", 1),
        Problem("line-3", "", "x", (4, 5)),
    ]


def test_a_limit_takes_the_first_lines(tmp_path):
    lines = [json.dumps({"prompt": f"{n}?", "reference": n}) for n in range(1, 6)]
    assert [problem.reference for problem in task(tmp_path, *lines, limit=2).problems()] == [1, 2]


@pytest.mark.parametrize(
    ("rule", "reference", "text", "right"),
    [
        ("exact", "Paris", " Paris\n", True),
        ("exact", "Paris", "Paris.", False),
        ("contains", "Paris", "It is Paris.", True),
        ("contains", "Paris", "It is paris.", False),
        ("number", 1234, "so 1,234.00 it is", True),
        ("number", "12", "first 5 then 12", True),
        ("number", 5, "5 . #### 12", False),
        ("number", 12, "5 #### 12 and 7", True),
        ("number", -3, "#### -3", True),
        ("number", 3, "none", False),
        ("regex", r"\bcat\b", "a cat sat", True),
        ("regex", r"\bcat\b", "concatenate", False),
    ],
)
def test_the_rules(tmp_path, rule, reference, text, right):
    line = json.dumps({"prompt": "?", "reference": reference})
    one = task(tmp_path, line, rule=rule)
    assert one.score(one.problems()[0], text).correct is right


@pytest.mark.parametrize(
    ("line", "rule", "words"),
    [
        ("{", "exact", "line 2: not JSON"),
        ("[1]", "exact", "line 2: not an object"),
        ('{"prompt": "?"}', "exact", "line 2: no 'reference'"),
        ('{"reference": 1}', "exact", "line 2: give either"),
        ('{"prompt": "?", "prompt_ids": [1], "reference": 1}', "exact", "line 2: give either"),
        ('{"prompt": "", "reference": 1}', "exact", "line 2: 'prompt' must be"),
        ('{"prompt_ids": [1, -2], "reference": 1}', "exact", "line 2: 'prompt_ids'"),
        ('{"prompt_ids": [], "reference": 1}', "exact", "line 2: 'prompt_ids'"),
        ('{"prompt": "?", "reference": [1]}', "exact", "line 2: 'reference' is"),
        ('{"prompt": "?", "reference": "two"}', "number", "not a number"),
        ('{"prompt": "?", "reference": "("}', "regex", "no regular expression"),
        ('{"prompt": "?", "reference": ""}', "contains", "line 2: 'reference' is empty"),
        ('{"prompt": "?", "reference": 1, "answer": 2}', "exact", "unknown key 'answer'"),
        ('{"prompt": "?", "reference": 1, "id": "line-1"}', "exact", "already on line 1"),
        ('{"prompt": "?", "reference": 1, "id": [1]}', "exact", "line 2: 'id' is"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, rule, words):
    good = json.dumps({"prompt": "?", "reference": 1})
    with pytest.raises(ConfigError) as error:
        task(tmp_path, good, line, rule=rule).problems()
    assert words in str(error.value)


def test_a_missing_or_empty_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="nowhere"):
        jsonl.Task(jsonl.Config("jsonl", str(tmp_path / "nowhere"))).problems()
    with pytest.raises(ConfigError, match="no problem"):
        task(tmp_path, "").problems()


def test_an_unknown_rule_is_refused_with_those_that_exist():
    with pytest.raises(ConfigError, match="exact, contains, number, regex"):
        jsonl.Config("jsonl", "x", rule="fuzzy")


def test_a_pattern_that_backtracks_without_end_is_given_up(monkeypatch):
    monkeypatch.setattr(jsonl, "REGEX_SECONDS", 0.05)
    score = jsonl.RULES["regex"](r"^(a|aa)+$", "a" * 60 + "b")
    assert not score.correct
    assert "no match within" in score.detail["reason"]
