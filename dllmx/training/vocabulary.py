"""The word-level vocabulary of the bundled models and their tokenizer folders.

Numbers 0..99 are whole tokens (id = number), then words and signs, then the special tokens of the
family. Text is lower-cased and split at spaces and punctuation; decoded text has a space between
any two tokens, which is still valid Python.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dllmx.tasks import tiny_code, tiny_lists, tiny_math

if TYPE_CHECKING:
    from tokenizers import Tokenizer

NUMBERS = tuple(str(n) for n in range(100))
UNKNOWN = "<unk>"
PATTERN = r"#+|\w+|[^\w\s]"
MODEL_MAX_LENGTH = 512


@dataclass(frozen=True, slots=True)
class Specials:
    """Special tokens of a family and how its chat is written; None where it has no such token."""

    tokens: tuple[str, ...]
    end_of_text: str
    end_of_turn: str
    mask: str
    bos: str
    opening: str
    before_role: str
    after_role: str
    after_turn: str


SPECIALS = {
    "llada": Specials(
        tokens=(
            "<|startoftext|>",
            "<|endoftext|>",
            "<|mdm_mask|>",
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|eot_id|>",
        ),
        end_of_text="<|endoftext|>",
        end_of_turn="<|eot_id|>",
        mask="<|mdm_mask|>",
        bos="<|startoftext|>",
        opening="<|startoftext|>",
        before_role="<|start_header_id|>",
        after_role="<|end_header_id|>\n\n",
        after_turn="<|eot_id|>",
    ),
    "dream": Specials(
        tokens=("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|beginoftext|>", "<|mask|>"),
        end_of_text="<|endoftext|>",
        end_of_turn="<|im_end|>",
        mask="<|mask|>",
        bos="<|beginoftext|>",
        opening="",
        before_role="<|im_start|>",
        after_role="\n",
        after_turn="<|im_end|>\n",
    ),
}


def words() -> tuple[str, ...]:
    """All ordinary tokens in the order of their ids, ``<unk>`` last."""
    tasks = f"{tiny_math.WORDS} {tiny_lists.WORDS} {tiny_code.WORDS}"
    ordered = dict.fromkeys((*NUMBERS, "user", "assistant", "system", *tasks.split()))
    return (*ordered, UNKNOWN)


def token_ids(family: str) -> dict[str, int]:
    """Id of every token of a family, the special ones included."""
    return {token: number for number, token in enumerate((*words(), *SPECIALS[family].tokens))}


def build_tokenizer(family: str) -> Tokenizer:
    """The word-level tokenizer of a family."""
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

    vocabulary = {word: number for number, word in enumerate(words())}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex(PATTERN), "isolated")]
    )
    specials = [
        AddedToken(token, special=True, normalized=False, lstrip=True, rstrip=True)
        for token in SPECIALS[family].tokens
    ]
    tokenizer.add_special_tokens(specials)
    return tokenizer


def render_prompt(family: str, prompt: str) -> str:
    """One user turn and the header of the assistant's, as the chat template writes them."""
    special = SPECIALS[family]
    turn = f"{special.before_role}user{special.after_role}{prompt}{special.after_turn}"
    return f"{special.opening}{turn}{special.before_role}assistant{special.after_role}"


def chat_template(family: str) -> str:
    """The template in Jinja, for transformers."""
    special = SPECIALS[family]
    opening, before, after, end = (
        json.dumps(part)
        for part in (special.opening, special.before_role, special.after_role, special.after_turn)
    )
    return (
        f"{{{{ {opening} }}}}{{% for message in messages %}}"
        f"{{{{ {before} + message['role'] + {after} + message['content'] | trim + {end} }}}}"
        f"{{% endfor %}}{{{{ {before} + 'assistant' + {after} }}}}"
    )


def save_tokenizer(family: str, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json, as transformers reads them."""
    special = SPECIALS[family]
    build_tokenizer(family).save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": UNKNOWN,
        "bos_token": special.bos,
        "eos_token": special.end_of_text,
        "pad_token": special.end_of_text,
        "additional_special_tokens": list(special.tokens),
        "add_bos_token": False,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": MODEL_MAX_LENGTH,
        "padding_side": "left",
        "chat_template": chat_template(family),
    }
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
