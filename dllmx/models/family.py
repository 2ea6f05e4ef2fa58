"""What a model family must say about itself: config keys, tensor names, special texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dllmx.errors import ConfigError
from dllmx.models.model import ModelShape


@dataclass(frozen=True, slots=True)
class TensorNames:
    """Names of a checkpoint's tensors, without the ending ``.weight`` or ``.bias``.

    ``layer`` holds ``{index}`` and is put before the names of a layer's tensors.
    """

    embed: str
    final_norm: str
    head: str
    layer: str
    attn_norm: str
    q: str
    k: str
    v: str
    attn_out: str
    mlp_norm: str
    gate: str
    up: str
    down: str


@dataclass(frozen=True)
class ConfigKeys:
    """The content of a ``config.json``; ``origin`` names where it came from, for errors."""

    values: Mapping[str, Any]
    origin: str

    def whole(self, key: str) -> int:
        """A required whole number."""
        value = self._required(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ConfigError(f"{self.origin}: {key} is {value!r}; a whole number >= 0 is needed")
        return value

    def whole_or_none(self, key: str) -> int | None:
        """An optional whole number."""
        return None if self.values.get(key) is None else self.whole(key)

    def positive(self, key: str) -> float:
        """A required number above zero."""
        value = self._required(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise ConfigError(f"{self.origin}: {key} is {value!r}; a number > 0 is needed")
        return float(value)

    def flag(self, key: str) -> bool:
        """A required true or false."""
        value = self._required(key)
        if not isinstance(value, bool):
            raise ConfigError(f"{self.origin}: {key} is {value!r}; true or false is needed")
        return value

    def must_be(self, key: str, supported: object) -> None:
        """Refuse a required key whose value is not the one that is supported."""
        self._compare(key, self._required(key), supported)

    def must_be_unless_absent(self, key: str, supported: object) -> None:
        """Refuse a key that is present, not null, and not the value that is supported."""
        value = self.values.get(key)
        if value is not None:
            self._compare(key, value, supported)

    def _compare(self, key: str, value: object, supported: object) -> None:
        if value != supported:
            raise ConfigError(f"{self.origin}: {key} is {value!r}; only {supported!r} is supported")

    def _required(self, key: str) -> Any:
        if key not in self.values:
            raise ConfigError(f"{self.origin}: the key {key!r} is missing; no default is assumed")
        return self.values[key]


@dataclass(frozen=True)
class Family:
    """A model family.

    ``model_type`` is the value in ``config.json``; ``read`` turns the keys into a shape and
    ``write`` a shape into the keys; ``end_of_turn`` is the text of the token that ends a chat
    turn; ``bos_before_plain_text`` says whether a prompt without chat template starts with the
    tokenizer's beginning-of-text token.
    """

    name: str
    model_type: str
    names: TensorNames
    read: Callable[[ConfigKeys], ModelShape]
    write: Callable[[ModelShape], dict[str, Any]]
    end_of_turn: str
    bos_before_plain_text: bool


def head_size(keys: ConfigKeys, width_key: str, heads_key: str) -> int:
    """Size of one attention head; an error where the heads do not divide the width evenly."""
    width, heads = keys.whole(width_key), keys.whole(heads_key)
    if heads == 0 or width % heads or (width // heads) % 2:
        raise ConfigError(
            f"{keys.origin}: {heads_key}={heads} does not divide {width_key}={width} "
            "into heads of an even size"
        )
    return width // heads
