from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_model import DREAM_KEYS, LLADA_KEYS, make_tensors, write_folder

from dllmx.config.schema import ModelConfig
from dllmx.errors import ConfigError, RunError
from dllmx.models.families import shape_of
from dllmx.models.loading import load_shape
from dllmx.models.tokenizer import ByteTokenizer, Tokenizer, load_tokenizer

REFERENCE = Path(__file__).parents[1] / "reference"
LLADA_TEMPLATE = (
    "{% for m in messages %}{% if loop.first %}<|startoftext|>{% endif %}"
    "<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n{{ m['content'] | trim }}<|eot_id|>"
    "{% endfor %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
)
QWEN_TEMPLATE = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nBe kind<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLADA_SPECIALS = ["<|startoftext|>", "<|endoftext|>", "<|mdm_mask|>"]
LLADA_SPECIALS += ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
DREAM_SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|beginoftext|>", "<|mask|>"]
DREAM_SPECIALS += ["<|dlm_pad|>"]
BYTES = 256


def byte_letters() -> list[str]:
    """The 256 printable letters that stand for bytes in byte-level vocabularies."""
    from tokenizers.pre_tokenizers import ByteLevel

    return sorted(ByteLevel.alphabet())


def added(specials: list[str]) -> dict[str, dict]:
    flags = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
    return {
        str(BYTES + index): {"content": text, "special": True, **flags}
        for index, text in enumerate(specials)
    }


@pytest.fixture
def llada_folder(tmp_path: Path) -> Path:
    """LLaDA's layout: tokenizer.json, no token added, the mask not declared."""
    from tokenizers import AddedToken, decoders, pre_tokenizers, processors
    from tokenizers import Tokenizer as Backend
    from tokenizers.models import BPE

    keys = {**LLADA_KEYS, "vocab_size": 300, "embedding_size": 300}
    keys |= {"mask_token_id": 258, "eos_token_id": 257, "pad_token_id": 257}
    folder = write_folder(tmp_path / "llada", keys, make_tensors(keys))
    backend = Backend(BPE({letter: index for index, letter in enumerate(byte_letters())}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    # The mask is no special token of this tokenizer, and its post-processor would add a token.
    backend.add_tokens([AddedToken(text, special="mask" not in text) for text in LLADA_SPECIALS])
    backend.post_processor = processors.TemplateProcessing(
        single="<|startoftext|> $A", special_tokens=[("<|startoftext|>", BYTES)]
    )
    backend.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|startoftext|>",
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "add_bos_token": False,
        "add_eos_token": False,
        "chat_template": LLADA_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture
def dream_folder(tmp_path: Path) -> Path:
    """Dream's layout: vocab.json and merges.txt, and a tokenizer class that is code on the Hub."""
    keys = {**DREAM_KEYS, "vocab_size": 300, "mask_token_id": 260}
    keys |= {"eos_token_id": 256, "pad_token_id": 256, "bos_token_id": 256}
    folder = write_folder(tmp_path / "dream", keys, make_tensors(keys))
    letters = {letter: index for index, letter in enumerate(byte_letters())}
    (folder / "vocab.json").write_text(json.dumps(letters))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    settings = {
        "tokenizer_class": "DreamTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]},
        "added_tokens_decoder": added(DREAM_SPECIALS),
        "bos_token": "<|beginoftext|>",
        "eos_token": "<|endoftext|>",
        "pad_token": "<|dlm_pad|>",
        "mask_token": "<|mask|>",
        "chat_template": QWEN_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "tokenization_dream.py").write_text("raise SystemExit('remote code was run')\n")
    return folder


def config_of(family: str, folder: Path | None, **changes: object) -> ModelConfig:
    config = ModelConfig(family, family, "nobody/nothing", chat=False)
    return replace(config, path=None if folder is None else str(folder), **changes)


def tokenizer_of(family: str, folder: Path, **changes: object) -> Tokenizer:
    config = config_of(family, folder, **changes)
    return load_tokenizer(config, load_shape(config))


def test_llada_prompts_open_the_assistants_turn(llada_folder):
    tokenizer = tokenizer_of("llada", llada_folder, chat=True)
    ids = tokenizer.encode_prompt("  hi ")
    assert tokenizer.readable(ids) == (
        "<|startoftext|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    assert ids[:2] == [256, 259]
    assert tokenizer.source == str(llada_folder)


def test_plain_llada_prompts_have_no_token_added(llada_folder):
    tokenizer = tokenizer_of("llada", llada_folder)
    assert tokenizer.encode_prompt("hi") == tokenizer.encode("hi")
    assert len(tokenizer.encode("hi")) == 2


def test_dream_prompts_follow_its_template_without_running_its_code(dream_folder):
    tokenizer = tokenizer_of("dream", dream_folder, chat=True)
    ids = tokenizer.encode_prompt("hi")
    assert tokenizer.readable(ids) == (
        "<|im_start|>system\nBe kind<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert ids[0] == 257


def test_plain_dream_prompts_start_with_the_tokenizers_beginning_of_text(dream_folder):
    tokenizer = tokenizer_of("dream", dream_folder)
    assert tokenizer.encode_prompt("hi") == [259, *tokenizer.encode("hi")]


@pytest.mark.parametrize("text", ["a  b ,c .", "def f(x):\n    return x , 1\n", "größe 1 + 2 ?"])
def test_text_survives_encoding_and_decoding(llada_folder, dream_folder, text):
    for family, folder in (("llada", llada_folder), ("dream", dream_folder)):
        tokenizer = tokenizer_of(family, folder)
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_answers_are_cut_at_the_first_end_id_of_any_kind(llada_folder, dream_folder):
    llada = tokenizer_of("llada", llada_folder)
    assert llada.end_ids == {257, 261}
    for end in llada.end_ids:
        assert llada.decode([*llada.encode("yes"), end, *llada.encode("no")]) == "yes"
    # DiffuCoder ends with a padding token that only its tokenizer names.
    dream = tokenizer_of("dream", dream_folder)
    assert dream.end_ids == {256, 258, 261}
    for end in dream.end_ids:
        assert dream.decode([*dream.encode("yes"), end, *dream.encode("no")]) == "yes"


def test_masks_and_specials_inside_an_answer_are_dropped_but_readable(llada_folder):
    tokenizer = tokenizer_of("llada", llada_folder)
    ids = [*tokenizer.encode("a"), 258, 259, *tokenizer.encode("b")]
    assert tokenizer.decode(ids) == "ab"
    assert tokenizer.readable(ids) == "a<|mdm_mask|><|start_header_id|>b"


def test_ids_that_the_tokenizer_does_not_know_do_not_stop_decoding(llada_folder):
    tokenizer = tokenizer_of("llada", llada_folder)
    assert tokenizer.decode([*tokenizer.encode("a"), 299, *tokenizer.encode("b")]) == "ab"


def test_chat_without_a_template_is_refused_once_a_text_is_to_be_encoded():
    tokenizer = tokenizer_of("llada", REFERENCE / "tiny-llada", chat=True)
    assert tokenizer.decode([46, 40, 2]) != ""
    with pytest.raises(ConfigError, match="has no chat template; set model.chat=false"):
        tokenizer.encode_prompt("reverse the list")


def test_a_template_that_fails_is_reported(llada_folder):
    path = llada_folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    settings["chat_template"] = "{{ raise_exception('only one turn') }}"
    path.write_text(json.dumps(settings))
    tokenizer = tokenizer_of("llada", llada_folder, chat=True)
    with pytest.raises(RunError, match="the chat template in .* fails: only one turn"):
        tokenizer.encode_prompt("hi")


def test_a_tokenizer_of_another_model_is_refused(llada_folder):
    with pytest.raises(ConfigError, match="has ids up to 261, but .* vocabulary is 82"):
        tokenizer_of("llada", REFERENCE / "tiny-llada", tokenizer=str(llada_folder))


def test_a_folder_given_as_tokenizer_wins(llada_folder, dream_folder):
    tokenizer = tokenizer_of("dream", dream_folder, tokenizer=str(llada_folder))
    assert tokenizer.source == str(llada_folder)


def test_a_folder_without_tokenizer_is_refused_when_it_is_named(llada_folder, tmp_path):
    with pytest.raises(ConfigError, match="neither tokenizer.json nor vocab.json and merges.txt"):
        tokenizer_of("llada", llada_folder, tokenizer=str(tmp_path))


@pytest.mark.parametrize("text", ["{", '{"model": 3}', ""])
def test_a_damaged_tokenizer_is_reported_with_its_folder(llada_folder, text):
    shape = load_shape(config_of("llada", llada_folder))
    (llada_folder / "tokenizer.json").write_text(text)
    with pytest.raises(RunError, match="the tokenizer in .*llada cannot be read"):
        load_tokenizer(config_of("llada", llada_folder), shape)


def test_a_checkpoint_without_tokenizer_decodes_ids_and_refuses_text():
    tokenizer = tokenizer_of("dream", REFERENCE / "tiny-dream-random")
    assert tokenizer.source == "none"
    assert tokenizer.decode([5, 6, 91, 7]) == "5 6"
    with pytest.raises(ConfigError, match="has no tokenizer .* model.tokenizer=DIR"):
        tokenizer.encode_prompt("hi")


def test_random_weights_without_tokenizer_use_bytes_and_say_so(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    shape = replace(shape_of(LLADA_KEYS, "test"), vocab=300)
    config = config_of("llada", None, weights="random", chat=True)
    tokenizer = load_tokenizer(config, shape)
    assert tokenizer.source == "bytes"
    assert tokenizer.encode_prompt("hé") == list("hé".encode())


def test_random_weights_keep_the_tokenizer_that_is_there(llada_folder):
    assert tokenizer_of("llada", llada_folder, weights="random").source == str(llada_folder)


def test_bytes_need_room_in_the_vocabulary():
    with pytest.raises(ConfigError, match="needs a vocabulary of 256 ids; .* has 82"):
        tokenizer_of("llada", REFERENCE / "tiny-llada", tokenizer="bytes")


def test_bytes_have_no_chat_template(llada_folder):
    with pytest.raises(ConfigError, match="bytes has no chat template; set model.chat=false"):
        tokenizer_of("llada", llada_folder, tokenizer="bytes", chat=True)


@given(text=st.text())
def test_bytes_give_any_text_back(text):
    tokenizer = ByteTokenizer(frozenset({257}))
    assert tokenizer.decode([*tokenizer.encode(text), 257, 65]) == text


def test_bytes_are_readable_whatever_the_ids():
    tokenizer = ByteTokenizer(frozenset())
    assert tokenizer.readable([72, 105, 10, 126336]) == "Hi<10><126336>"
    assert tokenizer.decode([72, 105, 255, 126336]) == "Hi\ufffd"


def test_the_module_is_quick_to_import_before_a_tokenizer_is_needed():
    code = "import dllmx.models.tokenizer, sys; assert 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
