"""Draws the frames of a decode: in place on a terminal, one line a step elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.live import Live
from rich.text import Text

from dllmx.cli.console import results
from dllmx.runs.playback import Frame

if TYPE_CHECKING:
    from dllmx.models.tokenizer import Tokenizer

MASK = "·"
PROMPT_STYLE = "dim italic"
MASK_STYLE = "dim"
BLOCK_STYLE = "on grey23"
AGES = ((0, "bold black on bright_green"), (1, "bright_green"), (3, "green"), (8, "cyan"))
"""Style of a token up to that age in steps; older tokens have the terminal's own colour."""


class Player:
    """Shows a decode step by step; a context manager, so that the terminal is restored."""

    def __init__(self, frame: Frame, tokenizer: Tokenizer, title: str, speed: float) -> None:
        self.frame = frame
        self.tokenizer = tokenizer
        self.title = title
        self.pause = 1 / speed if speed else 0.0
        self.console = results()
        self.live: Live | None = None
        self.pieces: dict[int, str] = {}

    def __enter__(self) -> Player:
        if self.console.is_terminal:
            self.live = Live(self._picture(), console=self.console, auto_refresh=False)
            self.live.start()
        else:
            self._line(f"{self.title}: {self._text(range(self.frame.prompt_length))}")
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()
        else:
            self._line(self._text(range(self.frame.prompt_length, len(self.frame.tokens))))

    def show(self, step: Mapping[str, Any]) -> None:
        """Show the canvas after one more step, and wait."""
        self.frame = self.frame.after(step)
        if self.live is not None:
            self.live.update(self._picture(), refresh=True)
        else:
            self._line(f"{self._counter()}  {self._changes(step)}")
        time.sleep(self.pause)

    def _picture(self) -> Group:
        head = Text(f"{self.title}   {self._counter()}", style="bold")
        canvas = Text()
        for position in range(len(self.frame.tokens)):
            canvas.append(self._piece(position), style=self._style(position))
            canvas.append(" ")
        return Group(head, Text(), canvas, Text())

    def _style(self, position: int) -> str:
        frame = self.frame
        if position < frame.prompt_length and frame.age(position) is None:
            return PROMPT_STYLE
        block = frame.block
        behind = BLOCK_STYLE if block and block[0] <= position < block[1] else ""
        age = frame.age(position)
        if age is None:
            return f"{MASK_STYLE} {behind}"
        return next(
            (style if age == 0 else f"{style} {behind}" for upto, style in AGES if age <= upto),
            behind,
        )

    def _piece(self, position: int) -> str:
        token = self.frame.tokens[position]
        if token == self.frame.mask_id:
            return MASK
        if token not in self.pieces:
            self.pieces[token] = (
                self.tokenizer.readable([token]).strip().replace("\n", "\\n") or "_"
            )
        return self.pieces[token]

    def _text(self, positions: range) -> str:
        return " ".join(self._piece(position) for position in positions)

    def _counter(self) -> str:
        frame = self.frame
        step = frame.step or {}
        rows = step.get("rows", 0)
        count = len(rows) if isinstance(rows, list) else rows
        forward = f"{'full' if step.get('full') else 'partial'} {count} rows" if step else ""
        return f"step {frame.number}  NFE {frame.number}  {frame.masks} masks left  {forward}"

    def _changes(self, step: Mapping[str, Any]) -> str:
        written = [f"+{position}:{self._piece(position)}" for position, _ in step["commit"]]
        masked = [f"-{position}" for position in step["remask"]]
        filled = [f"+{step['filled'][0]}..:end of text"] if step["filled"] else []
        return " ".join([*written, *masked, *filled])

    def _line(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)
