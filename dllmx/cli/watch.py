"""``dllmx watch``: a decode in the terminal, token by token, live or from a recorded trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dllmx.cli.arguments import parse_number, refuse_keys, split_arguments, wants_help
from dllmx.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dllmx.config.schema import RunConfig
    from dllmx.decode.session import Session
    from dllmx.runs.folder import RunFolder
    from dllmx.tasks.problem import Problem

HELP = """\
Play a decode: fresh tokens bright, older ones paler, masks as dots, the block shaded.

Usage: dllmx watch [problem=N | prompt="..."] [--speed N] [key=value ...]
       dllmx watch run=RUN [sample=ID] [--speed N]

  dllmx watch policy=fast-dllm                  the first problem of the default task
  dllmx watch problem=7 task=tiny-lists         another one; problems count from 0
  dllmx watch prompt="tom has 3 apples"         your own
  dllmx watch run=tiny-llada-fast sample=ID     a sample of a run made with trace=true

  --speed N     steps a second (default 6); 0: as fast as they come
"""

OWN = ("prompt", "problem", "run", "sample", "speed", "output")
DEFAULT_SPEED = "6"
REFUSED = {
    "logger": "it keeps nothing",
    "trace": "it keeps nothing; to record traces: dllmx run trace=true",
    "overwrite": "it keeps nothing",
    "batch_size": "it plays one decode",
}


def main(argv: list[str]) -> int:
    """Run the command; returns its exit status."""
    if wants_help(argv, HELP):
        return 0
    arguments = split_arguments(_speed_as_key(argv), OWN, "watch")
    own = arguments.own
    speed = parse_number("speed", own.get("speed", DEFAULT_SPEED), 0)
    if "run" in own:
        _refuse(own, ("prompt", "problem"), "run")
        if arguments.overrides:
            raise ConfigError(
                f"{arguments.overrides[0]} has no effect: run= plays what was recorded"
            )
        _replay(find_recorded(own), own.get("sample"), speed)
        return 0
    _refuse(own, ("sample", "output"), "a live decode")
    refuse_keys(arguments.overrides, REFUSED, "watch")
    _play_live(arguments.overrides, own, speed)
    return 0


def find_recorded(own: Mapping[str, str]) -> RunFolder:
    """The run that ``run=`` names. Raises ConfigError when it has no trace."""
    from dllmx.runs.folder import find_run

    folder = find_run(own["run"], Path(own.get("output", "outputs")))
    if not folder.trace.exists():
        raise ConfigError(f"{folder.path.name} has no trace. Record one: dllmx run trace=true ...")
    return folder


def _speed_as_key(argv: list[str]) -> list[str]:
    """``--speed 3`` and ``--speed=3`` as ``speed=3``."""
    rest = [
        argument.removeprefix("--") if argument[:8] == "--speed=" else argument for argument in argv
    ]
    if "--speed" not in rest:
        return rest
    at = rest.index("--speed")
    if at + 1 == len(rest):
        raise ConfigError("--speed needs a number of steps a second.")
    return [*rest[:at], f"speed={rest[at + 1]}", *rest[at + 2 :]]


def _refuse(own: Mapping[str, str], keys: tuple[str, ...], beside: str) -> None:
    for key in keys:
        if key in own:
            raise ConfigError(f"{key}= has no effect on {beside}. See: dllmx watch --help")


def _play_live(overrides: list[str], own: Mapping[str, str], speed: float) -> None:
    from dllmx.cli.composing import compose_run
    from dllmx.cli.player import Player
    from dllmx.decode.decoder import Request
    from dllmx.runs.execute import prepare_bench
    from dllmx.runs.identity import sample_seed
    from dllmx.runs.plan import prompt_ids
    from dllmx.runs.playback import first_frame
    from dllmx.runs.trace import step_to_json

    config = compose_run(overrides)
    problem = _problem(config, own)
    bench = prepare_bench(config)
    ids, special = prompt_ids(problem, bench.tokenizer), bench.special
    frame = first_frame(ids, config.sampler.gen_length, special.mask_id, special.eos_id)
    title = f"{config.model.name}  {config.policy.name}"

    def show_step(session: Session) -> None:
        player.show(step_to_json(session.sequences[0].records[-1]))

    request = Request(problem.id, ids, sample_seed(config.seed, problem.id))
    with Player(frame, bench.tokenizer, title, speed) as player:
        bench.decoder.decode([request], on_step=show_step)


def _problem(config: RunConfig, own: Mapping[str, str]) -> Problem:
    """The problem to decode: the prompt of the command line, or one of the task's."""
    from dllmx.config import parts
    from dllmx.tasks.problem import Problem

    if "prompt" in own:
        _refuse(own, ("problem",), "prompt=")
        return Problem("prompt", own["prompt"], None)
    problems: Sequence[Problem] = parts.load("task", config.task.name).Task(config.task).problems()
    number = own.get("problem", "0")
    if not number.isdigit() or int(number) >= len(problems):
        last = len(problems) - 1
        raise ConfigError(f"problem={number}: task={config.task.name} has 0 to {last}.")
    return problems[int(number)]


def _replay(folder: RunFolder, sample: str | None, speed: float) -> None:
    from dllmx.cli.player import Player
    from dllmx.config.schema import ModelConfig
    from dllmx.models.loading import load_shape
    from dllmx.models.tokenizer import load_tokenizer
    from dllmx.runs.playback import first_frame
    from dllmx.runs.trace import read_trace

    entries = read_trace(folder.trace)
    entry = next((e for e in entries if sample is None or e["id"] == sample), None)
    record = next((r for r in folder.read_samples() if entry and r.id == entry["id"]), None)
    if entry is None or record is None:
        known = ", ".join(r.id for r in folder.read_samples()[:5])
        raise ConfigError(f"sample={sample} is not in {folder.path.name}. It has: {known}, ...")
    model = ModelConfig(**folder.read_config()["model"])
    shape = load_shape(model)
    tokenizer = load_tokenizer(model, shape)
    frame = first_frame(entry["prompt_ids"], len(record.output_ids), shape.mask_id, shape.eos_id)
    with Player(frame, tokenizer, f"{folder.path.name}  {entry['id']}", speed) as player:
        for step in entry["steps"]:
            player.show(step)
