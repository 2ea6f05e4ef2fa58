from __future__ import annotations

import pytest

from dllmx.errors import ConfigError
from dllmx.runs.prompts import check_vocabulary, parse_prompts


def test_text_and_ids_are_read_and_empty_lines_left_out() -> None:
    lines = ['{"id": "a", "prompt": "hello"}', "", '{"id": 7, "prompt_ids": [1, 2]}']
    first, second = parse_prompts(lines, "file")
    assert (first.id, first.text, first.ids) == ("a", "hello", None)
    assert (second.id, second.text, second.ids, second.line) == (7, None, [1, 2], 3)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("not json", "file line 2 is not JSON"),
        ("[1]", "file line 2 is not a JSON object"),
        ('{"prompt": "x"}', "file line 2 needs an id"),
        ('{"id": true, "prompt": "x"}', "file line 2 needs an id"),
        ('{"id": 1}', "file line 2 needs either prompt or prompt_ids"),
        ('{"id": 1, "prompt": "x", "prompt_ids": [1]}', "needs either prompt or prompt_ids"),
        ('{"id": 1, "prompt": 5}', "prompt must be a string"),
        ('{"id": 1, "prompt_ids": [1, -2]}', "prompt_ids must be a list"),
        ('{"id": 1, "prompt_ids": [1, 2.5]}', "prompt_ids must be a list"),
        ('{"id": 1, "prompt_ids": "12"}', "prompt_ids must be a list"),
        ('{"id": 1, "prompt": "x", "seed": -1}', "seed must be a whole number"),
        ('{"id": 1, "prompt": "x", "seed": true}', "seed must be a whole number"),
        ('{"id": 1, "prompt": "x", "seed": null}', "seed must be a whole number"),
        ('{"id": 1, "prompt": "x", "promt": "y"}', "unknown key 'promt'"),
        ('{"id": "a", "prompt": "x"}', "line 2: id a is that of line 1"),
    ],
)
def test_bad_lines_are_named_with_their_number(line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_prompts(['{"id": "a", "prompt": "x"}', line], "file")


def test_a_file_without_prompts_is_refused() -> None:
    with pytest.raises(ConfigError, match="file has no prompts"):
        parse_prompts(["", "  "], "file")


def test_ids_outside_the_vocabulary_are_refused() -> None:
    prompts = parse_prompts(['{"id": 1, "prompt_ids": [4, 5]}'], "file")
    check_vocabulary(prompts, 6, "file")
    with pytest.raises(ConfigError, match=r"file line 1: id 5 .* 0 to 4"):
        check_vocabulary(prompts, 5, "file")
