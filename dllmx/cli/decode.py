"""``dllmx decode``: prompts in, answers with every step of their decodes out, as JSONL."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dllmx.cli.arguments import parse_flag, refuse_keys, split_arguments, wants_help
from dllmx.errors import ConfigError

if TYPE_CHECKING:
    from dllmx.config.schema import RunConfig
    from dllmx.decode.decoder import Decoded
    from dllmx.runs.execute import Bench
    from dllmx.runs.prompts import Prompt

HELP = """\
Decode the prompts of a JSONL file and write the answers with every step of their decodes.

Usage: dllmx decode input=FILE output=FILE [overwrite=true] [key=value ...]

  dllmx decode input=prompts.jsonl output=out.jsonl model=llada policy=fast-dllm
  dllmx decode input=- output=- sampler.gen_length=64 < prompts.jsonl > out.jsonl

Input lines:  {"id": ..., "prompt": "text"}  or  {"id": ..., "prompt_ids": [ids]}
              and "seed": n where a line's random draws are to have a seed of their own
Output lines: {"id", "text", "prompt_ids", "output_ids", "nfe", "seconds", "counters", "steps"}
  a step: {"commit": [[position, token], ...], "remask": [positions], "rows": n or [positions],
           "full": bool, ...}; positions count from the start of the canvas, prompt included.
  output_ids is the response alone.
"""

STANDARD = "-"
REFUSED = {
    "logger": "it writes one file and no run folder",
    "trace": "its output always holds every step",
}


def main(argv: list[str]) -> int:
    """Run the command; returns its exit status."""
    if wants_help(argv, HELP):
        return 0
    arguments = split_arguments(argv, ("input", "output", "overwrite"), "decode")
    refuse_keys(arguments.overrides, REFUSED, "decode")
    source = _required(arguments.own, "input")
    target = _required(arguments.own, "output")
    overwrite = parse_flag("overwrite", arguments.own.get("overwrite", "false"))
    from dllmx.cli.composing import compose_run
    from dllmx.runs.prompts import parse_prompts

    prompts = parse_prompts(_read_lines(source), "standard input" if source == "-" else source)
    config = compose_run(arguments.overrides)
    _check_target(source, target, overwrite)
    _decode(config, prompts, source, target)
    return 0


def _required(own: Any, key: str) -> str:
    if key not in own:
        raise ConfigError(
            f"{key}= is missing. Try: dllmx decode input=prompts.jsonl output=out.jsonl"
        )
    return str(own[key])


def _read_lines(source: str) -> list[str]:
    try:
        if source == STANDARD:
            return sys.stdin.read().split("\n")
        return Path(source).read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"input={source} cannot be read: {reason}") from None


def _check_target(source: str, target: str, overwrite: bool) -> None:
    """Raise ConfigError unless ``target`` can be written; its content is not touched."""
    if target == STANDARD:
        return
    path = Path(target)
    if path.exists() and source != STANDARD and path.samefile(source):
        raise ConfigError(f"output={target} is the input itself. Name another file.")
    if path.exists() and path.stat().st_size and not overwrite:
        raise ConfigError(f"output={target} exists. To replace it: overwrite=true")
    existed = path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        raise ConfigError(f"output={target} cannot be written: {error.strerror}") from None
    if not existed:
        path.unlink()


def _decode(config: RunConfig, prompts: Sequence[Prompt], source: str, target: str) -> None:
    from dllmx.cli.console import notices
    from dllmx.cli.counting import Counting
    from dllmx.models.loading import device_of, load_shape
    from dllmx.runs.execute import prepare_bench
    from dllmx.runs.prompts import check_vocabulary

    check_vocabulary(prompts, load_shape(config.model).vocab, source)
    device_of(config.hardware)
    bench = prepare_bench(config)
    if target != STANDARD:
        Path(target).write_bytes(b"")
    with Counting(notices(), len(prompts)) as counting:
        for prompt, decoded in _decoded(config, bench, prompts):
            _write(target, _output_line(prompt, decoded, bench))
            counting.advance()


def _decoded(
    config: RunConfig, bench: Bench, prompts: Sequence[Prompt]
) -> Iterator[tuple[Prompt, Decoded]]:
    from dllmx.decode.decoder import Request
    from dllmx.runs.identity import sample_seed

    for start in range(0, len(prompts), config.batch_size):
        batch = prompts[start : start + config.batch_size]
        seeds = [sample_seed(config.seed, str(p.id)) if p.seed is None else p.seed for p in batch]
        requests = [
            Request(str(p.id), _ids(p, bench), seed) for p, seed in zip(batch, seeds, strict=True)
        ]
        yield from zip(batch, bench.decoder.decode(requests), strict=True)


def _ids(prompt: Prompt, bench: Bench) -> list[int]:
    if prompt.ids is not None:
        return prompt.ids
    return bench.tokenizer.encode_prompt(prompt.text or "")


def _output_line(prompt: Prompt, decoded: Decoded, bench: Bench) -> str:
    from dataclasses import asdict

    from dllmx.runs.trace import step_to_json

    line = {
        "id": prompt.id,
        "text": bench.tokenizer.decode(decoded.output_ids),
        "prompt_ids": decoded.prompt_ids,
        "output_ids": decoded.output_ids,
        "nfe": decoded.counters.nfe,
        "seconds": decoded.seconds,
        "counters": asdict(decoded.counters),
        "steps": [step_to_json(step) for step in decoded.steps],
    }
    return json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n"


def _write(target: str, line: str) -> None:
    """Write one whole line, so that whoever reads along or after a kill finds whole lines."""
    if target == STANDARD:
        sys.stdout.write(line)
        sys.stdout.flush()
        return
    with Path(target).open("ab", buffering=0) as stream:
        stream.write(line.encode())
        os.fsync(stream.fileno())
