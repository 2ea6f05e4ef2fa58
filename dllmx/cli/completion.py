"""Shell completion: Hydra completes overrides; the command's own name is taken out first."""

from __future__ import annotations

import os

from dllmx.cli.composing import run_hydra
from dllmx.cli.main import COMMANDS


def main(argv: list[str]) -> int:
    """Answer a shell's request for completions, or print the script that ``-sc install=`` names."""
    line = os.environ.get("COMP_LINE")
    if line is not None:
        shortened = without_command(line)
        os.environ["COMP_LINE"] = shortened
        point = int(os.environ.get("COMP_POINT", len(line)))
        os.environ["COMP_POINT"] = str(max(0, point - (len(line) - len(shortened))))
    run_hydra(lambda cfg: None, argv)
    return 0


def without_command(line: str) -> str:
    """``dllmx run policy=`` -> ``dllmx policy=``; other lines stay as they are."""
    words = line.split(" ", 2)
    if len(words) == 3 and words[1] in COMMANDS:
        return f"{words[0]} {words[2]}"
    return line
