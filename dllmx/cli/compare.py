"""``dllmx compare``: two runs, paired problem by problem."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from dllmx.cli.arguments import wants_help
from dllmx.cli.console import results
from dllmx.cli.tables import COLUMNS, text_table
from dllmx.cli.text import ABSENT, factor, fixed
from dllmx.errors import ConfigError
from dllmx.metrics.summary import RunMetrics, ratio
from dllmx.runs.comparison import Comparison, FirstDifference, compare_runs
from dllmx.runs.folder import RunFolder, find_run

if TYPE_CHECKING:
    from collections.abc import Callable

HELP = """\
Hold two runs against each other on the problems that both answered.

Usage: dllmx compare RUN RUN [output=FOLDER]

  dllmx compare tiny-llada-baseline tiny-llada-fast-dllm
  dllmx compare outputs/runs/A outputs/runs/B

A run is a folder, or the beginning of the name of one in <output>/runs.
"""


def main(argv: list[str]) -> int:
    """Run the command; returns its exit status."""
    if wants_help(argv, HELP):
        return 0
    names = [argument for argument in argv if not argument.startswith("output=")]
    output = next((a.partition("=")[2] for a in argv if a.startswith("output=")), "outputs")
    if len(names) != 2:
        raise ConfigError(
            f"compare takes two runs, not {len(names)}. See the runs: ls {output}/runs"
        )
    first, second = (find_run(name, Path(output)) for name in names)
    show(results(), first, second, compare_runs(first, second))
    return 0


def show(console: Console, first: RunFolder, second: RunFolder, comparison: Comparison) -> None:
    """Print a comparison: metrics side by side, the paired test, what differs."""

    def line(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    for label, folder in (("A", first), ("B", second)):
        state = "" if folder.finished else f"  ({folder.status})"
        line(f"{label}  {folder.path.name}{state}")
    console.print(text_table(["", "A", "B", "B / A"], _metric_rows(comparison), left=1))
    for text in _verdict(comparison):
        line(text)
    if comparison.settings:
        console.print(text_table(["differs", "A", "B"], [list(r) for r in comparison.settings]))
    else:
        line("All settings are equal.")
    for text in _difference_lines(comparison.first_difference):
        line(text)


def _metric_rows(comparison: Comparison) -> list[list[str]]:
    first, second = comparison.first, comparison.second
    measured: dict[str, Callable[[RunMetrics], float | None]] = {
        "NFE": lambda m: m.nfe_mean,
        "TPF": lambda m: m.tpf,
        "tpf_all": lambda m: m.tpf_all,
        "TPS": lambda m: m.tps,
        "recompute": lambda m: m.recompute_ratio,
    }
    return [
        [c.name, c.show(first), c.show(second), _ratio(measured.get(c.name), first, second)]
        for c in COLUMNS
    ]


def _ratio(
    read: Callable[[RunMetrics], float | None] | None, first: RunMetrics, second: RunMetrics
) -> str:
    if read is None:
        return ""
    a, b = read(first), read(second)
    return ABSENT if a is None or b is None else factor(ratio(b, a))


def _verdict(comparison: Comparison) -> list[str]:
    counts, interval = comparison.counts, comparison.difference
    gain = 100 * (counts.only_second - counts.only_first) / counts.total
    span = f"[{100 * interval.low:+.1f}, {100 * interval.high:+.1f}]"
    right = f"{counts.both} right in both, {counts.only_first} only in A"
    wrong = f"{counts.only_second} only in B, {counts.neither} in neither"
    p_value = f"McNemar exact p = {fixed(comparison.p_value, 4)}"
    lines = [
        f"{counts.total} problems in both: {right}, {wrong}",
        f"accuracy B - A: {gain:+.1f} points {span} (95 %, paired), {p_value}",
        f"{comparison.identical} of {counts.total} outputs are identical, token for token",
    ]
    if comparison.unpaired:
        lines.append(f"{comparison.unpaired} answers have no counterpart and are left out")
    return lines


def _difference_lines(found: FirstDifference | None) -> list[str]:
    if found is None:
        return []
    position = len(found.first.prompt_ids) + found.index
    a, b = ("end" if t is None else str(t) for t in (found.first_token, found.second_token))
    where = f"position {position} (response index {found.index})"
    return [
        f"First difference: problem {found.first.id}, {where}: token {a} in A, {b} in B",
        f"  A  {found.first.text!r}",
        f"  B  {found.second.text!r}",
    ]
