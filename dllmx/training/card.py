"""The model card of a bundled model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import fields

from dllmx.models.model import ModelShape
from dllmx.training import data
from dllmx.training.config import TrainConfig
from dllmx.training.evaluate import Result
from dllmx.training.state import Progress

FAMILIES = {
    "llada": "LLaDA (full attention heads, logits aligned with their positions)",
    "dream": "Dream (grouped key/value heads, query/key/value biases, logits shifted by one)",
}
TEMPLATE = """---
license: apache-2.0
library_name: dllmx
---
# {name}

A masked diffusion language model of {millions:.2f} million parameters in the manner of {family}:
{layers} layers of width {width}, {heads} heads, {kv_heads} key/value heads, {vocab} word-level
tokens. It answers the three generated tasks of dllmx and knows nothing else. It is made for
trying inference methods on a CPU.

## Data

Generated on the fly by `dllmx/tasks/tiny_math.py`, `tiny_lists.py` and `tiny_code.py`; nothing
was collected. A problem whose prompt has a hash in the held-out tenth is never trained on. The
same facts (such as 17 + 5 = 22) occur in both parts; the problems do not. Answers have several
equally good forms drawn at random, so that committing many tokens at once costs accuracy. Training
also draws from a wider scope than is judged: larger sums, longer lists and free replacements in the
first {beginning} steps, formulas of four operations to the end.

## Recipe

    {command}

{main_steps} steps of {batch} canvases (prompt and {gen_length} response tokens; one batch in
{long_every} with {long_length}), cross-entropy over the masked response tokens with stratified
masking ratios, Muon and AdamW, peak rate {rate:g}, held after {warmup} steps and taken to zero
over the last {decay:.0%}. {cached[0]:.0%} of the canvases, from step {cached_more} on
{cached[1]:.0%}, are seen as a dual cache leaves them: every row outside the block was computed
while the block was masked. The task mix follows the errors on training problems. Training took
{minutes:.0f} minutes with {threads} thread(s) on a machine with {cores} CPU cores, in bfloat16
arithmetic on float32 weights. Where rounding differs (another processor, another number of
threads) the weights come out different and about as good.

## Measured

The first {problems} held-out problems of each task (seed 0), {gen_length} response tokens in
blocks of {block}, no cache, temperature 0, float32. TPF is tokens other than end-of-text per
forward.

{table}
"""


def write_card(
    config: TrainConfig,
    shape: ModelShape,
    progress: Progress,
    parameters: int,
    results: Sequence[Result],
) -> str:
    """The card in Markdown."""
    return TEMPLATE.format(
        name=config.model,
        millions=parameters / 1e6,
        family=FAMILIES[shape.family],
        layers=shape.layers,
        width=shape.width,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        vocab=shape.vocab,
        command=command(config),
        main_steps=config.steps,
        batch=config.batch,
        gen_length=data.GEN_LENGTH,
        beginning=data.BEGINNING,
        long_every=data.LONG_EVERY,
        long_length=data.LONG_LENGTH,
        rate=config.rate,
        warmup=config.warmup,
        decay=config.decay,
        cached=data.CACHED,
        cached_more=data.CACHED_MORE,
        minutes=progress.seconds / 60,
        threads=config.threads,
        cores=os.cpu_count(),
        problems=results[0].problems if results else 0,
        block=data.BLOCK,
        table=table(results),
    )


def command(config: TrainConfig) -> str:
    """The command line that gives this configuration."""
    plain = TrainConfig()
    changed = [
        f"{entry.name}={getattr(config, entry.name)}"
        for entry in fields(config)
        if entry.name != "output"
        and (entry.name == "model" or getattr(config, entry.name) != getattr(plain, entry.name))
    ]
    return " ".join(["dllmx train-tiny", *changed])


def table(results: Sequence[Result]) -> str:
    """Accuracy and TPF by task and threshold, in Markdown."""
    lines = ["| task | commit | accuracy | TPF |", "|---|---|---|---|"]
    for result in results:
        rule = "one a forward" if result.threshold is None else f"threshold {result.threshold:g}"
        lines.append(
            f"| {result.task} | {rule} | {result.accuracy:.1%} | {result.tokens_per_forward:.2f} |"
        )
    return "\n".join(lines)
