"""From text to token ids and back, with the checkpoint's own tokenizer and chat template."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, Protocol

from dllmx.config.schema import ModelConfig
from dllmx.errors import ConfigError, RunError
from dllmx.models.families import FAMILIES
from dllmx.models.model import ModelShape
from dllmx.models.resolve import find_checkpoint

BYTES = 256
LONGEST = 10**9
WHOLE = "tokenizer.json"
VOCABULARY_AND_MERGES = ("vocab.json", "merges.txt")


class Tokenizer(Protocol):
    """What encodes prompts and decodes answers.

    ``source`` is the folder it came from, "bytes" for the byte-level stand-in, or "none" where
    the checkpoint has no tokenizer. ``end_ids`` are the ids at which an answer ends.
    """

    @property
    def source(self) -> str: ...

    @property
    def end_ids(self) -> frozenset[int]: ...

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a prompt as the model wants it: in the chat template, or as plain text."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of ``text`` alone; no special token is added."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of an answer up to its first end id, without special tokens and masks."""
        ...

    def readable(self, ids: Sequence[int]) -> str:
        """Text of all ``ids``, special tokens shown."""
        ...


@dataclass(frozen=True)
class CheckpointTokenizer:
    """The tokenizer of a checkpoint folder. ``prefix`` stands before every plain-text prompt."""

    source: str
    end_ids: frozenset[int]
    mask_id: int
    chat: bool
    prefix: tuple[int, ...]
    backend: Any

    def encode_prompt(self, text: str) -> list[int]:
        if not self.chat:
            return [*self.prefix, *self.encode(text)]
        return self.encode(self._turn(text))

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.backend.encode(text, add_special_tokens=False)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        kept = [token for token in until_end(ids, self.end_ids) if token != self.mask_id]
        return self._text(kept, skip_special_tokens=True)

    def readable(self, ids: Sequence[int]) -> str:
        return self._text(list(ids), skip_special_tokens=False)

    def _turn(self, text: str) -> str:
        from jinja2 import TemplateError

        if not self.backend.chat_template:
            raise ConfigError(
                f"model.chat=true, but the tokenizer in {self.source} has no chat template; "
                "set model.chat=false, or give prompt_ids"
            )
        turns = [{"role": "user", "content": text}]
        try:
            rendered: str = self.backend.apply_chat_template(
                turns, tokenize=False, add_generation_prompt=True
            )
        except TemplateError as error:
            raise RunError(f"the chat template in {self.source} fails: {error}") from error
        return rendered

    def _text(self, ids: list[int], skip_special_tokens: bool) -> str:
        # The clean-up would change spaces before punctuation, which breaks code.
        text: str = self.backend.decode(
            ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
        return text


@dataclass(frozen=True)
class ByteTokenizer:
    """A stand-in for random weights: one id a byte of UTF-8, no chat template."""

    end_ids: frozenset[int]
    source: str = "bytes"

    def encode_prompt(self, text: str) -> list[int]:
        return self.encode(text)

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8"))

    def decode(self, ids: Sequence[int]) -> str:
        kept = [token for token in until_end(ids, self.end_ids) if token < BYTES]
        return bytes(kept).decode("utf-8", errors="replace")

    def readable(self, ids: Sequence[int]) -> str:
        return "".join(chr(token) if 32 <= token < 127 else f"<{token}>" for token in ids)


@dataclass(frozen=True)
class AbsentTokenizer:
    """For a checkpoint without tokenizer: prompts must come as ids, answers are shown as ids."""

    folder: str
    end_ids: frozenset[int]
    source: str = "none"

    def encode_prompt(self, text: str) -> list[int]:
        return self.encode(text)

    def encode(self, text: str) -> list[int]:
        raise ConfigError(
            f"{self.folder} has no tokenizer ({WHOLE}, or {' and '.join(VOCABULARY_AND_MERGES)}), "
            "so text cannot be encoded; set model.tokenizer=DIR, or give prompt_ids"
        )

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(str(token) for token in until_end(ids, self.end_ids))

    def readable(self, ids: Sequence[int]) -> str:
        return " ".join(str(token) for token in ids)


def until_end(ids: Sequence[int], end_ids: frozenset[int]) -> Iterator[int]:
    """The ids before the first one that ends an answer."""
    return takewhile(lambda token: token not in end_ids, ids)


def load_tokenizer(config: ModelConfig, shape: ModelShape) -> Tokenizer:
    """The tokenizer that ``model.tokenizer`` names: "auto", "bytes" or a folder.

    "auto" is the checkpoint's own. Where random weights have no checkpoint on this machine it is
    the byte-level stand-in; where a checkpoint has no tokenizer, text cannot be encoded but ids
    can be decoded. ConfigError where the tokenizer does not fit the model, RunError where its
    files are damaged. A chat template that is missing shows when the first text is encoded:
    prompts that come as ids need none.
    """
    if config.tokenizer == "bytes":
        return _byte_tokenizer(config, shape)
    folder = _tokenizer_folder(config)
    if folder is not None and _has_tokenizer(folder):
        return _checkpoint_tokenizer(config, shape, folder)
    if config.tokenizer != "auto":
        raise ConfigError(
            f"model.tokenizer={config.tokenizer} has neither {WHOLE} nor "
            f"{' and '.join(VOCABULARY_AND_MERGES)}; choose auto, bytes or such a folder"
        )
    if config.weights == "random":
        return _byte_tokenizer(config, shape)
    return AbsentTokenizer(str(folder or config.checkpoint), _end_ids(shape))


def _tokenizer_folder(config: ModelConfig) -> Path | None:
    if config.tokenizer == "auto":
        return find_checkpoint(config)
    return Path(config.tokenizer).expanduser()


def _has_tokenizer(folder: Path) -> bool:
    whole = (folder / WHOLE).is_file()
    return whole or all((folder / name).is_file() for name in VOCABULARY_AND_MERGES)


def _byte_tokenizer(config: ModelConfig, shape: ModelShape) -> ByteTokenizer:
    if shape.vocab < BYTES:
        raise ConfigError(
            f"model.tokenizer=bytes needs a vocabulary of {BYTES} ids; model={config.name} has "
            f"{shape.vocab}. Set model.tokenizer=DIR"
        )
    if config.chat and config.weights != "random":
        raise ConfigError("model.tokenizer=bytes has no chat template; set model.chat=false")
    return ByteTokenizer(_end_ids(shape))


def _checkpoint_tokenizer(
    config: ModelConfig, shape: ModelShape, folder: Path
) -> CheckpointTokenizer:
    backend = _read_backend(folder)
    largest = max(backend.get_vocab().values())
    if largest >= shape.vocab:
        raise ConfigError(
            f"the tokenizer in {folder} has ids up to {largest}, but the model's vocabulary is "
            f"{shape.vocab}; set model.tokenizer=DIR to the tokenizer of this model"
        )
    family = FAMILIES[shape.family]
    bos = backend.bos_token_id if family.bos_before_plain_text else None
    turn_end = backend.get_vocab().get(family.end_of_turn)
    return CheckpointTokenizer(
        source=str(folder),
        end_ids=_end_ids(shape, turn_end, backend.eos_token_id, backend.pad_token_id),
        mask_id=shape.mask_id,
        chat=config.chat,
        prefix=() if bos is None else (bos,),
        backend=backend,
    )


def _end_ids(shape: ModelShape, *others: int | None) -> frozenset[int]:
    # The tokenizer's padding id counts: DiffuCoder ends its answers with one that its
    # config.json does not name.
    every = (shape.eos_id, shape.eot_id, shape.pad_id, *others)
    return frozenset(token for token in every if token is not None)


def _read_backend(folder: Path) -> Any:
    """A transformers tokenizer from local files; code in the folder is never run.

    Dream's checkpoints name a tokenizer class of their own, which is Qwen2's.
    """
    from transformers import PreTrainedTokenizerFast, Qwen2TokenizerFast

    kind = PreTrainedTokenizerFast if (folder / WHOLE).is_file() else Qwen2TokenizerFast
    try:
        with _quiet_transformers():
            # Prompts may be longer than what the settings name: positions are rotary.
            return kind.from_pretrained(
                str(folder), local_files_only=True, model_max_length=LONGEST
            )
    except Exception as error:  # noqa: BLE001 (the Rust side raises bare Exception)
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise RunError(f"the tokenizer in {folder} cannot be read: {reason}") from error


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Without the warning that the tokenizer's class has another name in its settings."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
