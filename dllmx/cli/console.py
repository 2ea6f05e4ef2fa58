"""Where commands print: results on stdout, progress and notices on stderr."""

from __future__ import annotations

import sys

from rich.console import Console

PLAIN_WIDTH = 200
"""Width of tables that go to a file or a pipe: wide enough that no line wraps."""


def results() -> Console:
    """The console of results (stdout)."""
    return _console(stderr=False)


def notices() -> Console:
    """The console of progress and notices (stderr)."""
    return _console(stderr=True)


def notice(line: str) -> None:
    """Print one plain line on stderr."""
    notices().print(line, markup=False, highlight=False, soft_wrap=True)


def _console(stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PLAIN_WIDTH
    return Console(stderr=stderr, width=width, highlight=False)
