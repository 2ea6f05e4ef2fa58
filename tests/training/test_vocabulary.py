"""The vocabulary covers the tasks, and its folder reads the same through transformers."""

import random

import pytest

from dllmx.tasks import tiny_code, tiny_lists, tiny_math
from dllmx.training import vocabulary

FAMILIES = ("llada", "dream")


@pytest.mark.parametrize("module", [tiny_math, tiny_lists, tiny_code])
def test_every_problem_and_answer_is_written_in_known_words(module):
    tokenizer = vocabulary.build_tokenizer("llada")
    rng = random.Random(0)
    for _ in range(500):
        example = module.draw(rng)
        for text in (example.prompt, example.answer):
            assert vocabulary.UNKNOWN not in tokenizer.encode(text).tokens, text


@pytest.mark.parametrize("module", [tiny_math, tiny_lists, tiny_code])
def test_answers_survive_encoding_and_decoding(module):
    tokenizer = vocabulary.build_tokenizer("dream")
    rng = random.Random(1)
    for _ in range(100):
        answer = module.draw(rng).answer
        assert tokenizer.decode(tokenizer.encode(answer).ids) == answer


def test_a_number_is_its_own_id():
    assert vocabulary.build_tokenizer("llada").encode("0 7 42 99").ids == [0, 7, 42, 99]


def test_ordinary_text_is_split_at_punctuation_and_lower_cased():
    tokens = vocabulary.build_tokenizer("llada").encode("Tom has\n34 books.####f(x):").tokens
    assert tokens == ["tom", "has", "34", "books", ".", "####", "f", "(", "x", ")", ":"]


def test_words_that_are_not_known_are_unknown():
    assert vocabulary.build_tokenizer("llada").encode("zebra 123").tokens == ["<unk>", "<unk>"]


def test_ordinary_words_have_the_same_ids_in_both_families():
    llada, dream = (vocabulary.token_ids(family) for family in FAMILIES)
    assert all(llada[word] == dream[word] for word in vocabulary.words())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_saved_folder_gives_transformers_the_same_ids_and_template(family, tmp_path):
    transformers = pytest.importorskip("transformers")
    vocabulary.save_tokenizer(family, tmp_path)
    saved = transformers.PreTrainedTokenizerFast.from_pretrained(str(tmp_path))
    prompt = "write a function f of x: take x, add 12."
    turns = [{"role": "user", "content": prompt}]
    text = saved.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert text == vocabulary.render_prompt(family, prompt)
    ids = saved(text, add_special_tokens=False).input_ids
    assert ids == vocabulary.build_tokenizer(family).encode(text, add_special_tokens=False).ids
    special = vocabulary.SPECIALS[family]
    numbers = vocabulary.token_ids(family)
    assert saved.eos_token_id == saved.pad_token_id == numbers[special.end_of_text]
    assert len(saved) == len(numbers)
