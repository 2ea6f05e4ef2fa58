"""A run made ready: everything that can be checked before the model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dllmx.config import parts
from dllmx.config.schema import ModelConfig, RunConfig
from dllmx.errors import ConfigError
from dllmx.models.resolve import resolve_checkpoint
from dllmx.runs.files import make_writable_folder
from dllmx.runs.folder import RunFolder
from dllmx.runs.identity import run_hash, run_name
from dllmx.tasks.problem import Problem, Score

if TYPE_CHECKING:
    from dllmx.models.tokenizer import Tokenizer


class Task(Protocol):
    """What every task module's ``Task`` offers."""

    def problems(self) -> Sequence[Problem]:
        """The problems to decode, the same in every process."""

    def score(self, problem: Problem, text: str) -> Score:
        """Whether ``text`` answers ``problem``."""


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A run with its problems and its folder; ``identity`` is the hash in the folder's name."""

    config: RunConfig
    task: Task
    problems: Sequence[Problem]
    identity: str
    folder: RunFolder

    @property
    def name(self) -> str:
        """The name of the run and of its folder."""
        return self.folder.path.name


def plan_run(config: RunConfig) -> PlannedRun:
    """Find the checkpoint, make the problems, name the folder and prove that it can be written.

    Raises ConfigError for a missing checkpoint or device, an empty task or an unwritable folder.
    """
    checkpoint = locate_checkpoint(config.model)
    _check_model(config)
    task = parts.load("task", config.task.name).Task(config.task)
    problems = task.problems()
    _check_problems(config, problems)
    identity = run_hash(config, problems, checkpoint)
    path = Path(config.output) / "runs" / run_name(config, identity)
    make_writable_folder(Path(config.output), "output")
    make_writable_folder(path, "output")
    return PlannedRun(config, task, problems, identity, RunFolder(path))


def locate_checkpoint(model: ModelConfig) -> Path | None:
    """Folder of the checkpoint; None for random weights of a configured shape.

    Raises ConfigError where a checkpoint is wanted and absent.
    """
    if model.weights == "random" and model.path is None and model.shape is not None:
        return None
    return resolve_checkpoint(model)


def prompt_ids(problem: Problem, tokenizer: Tokenizer) -> list[int]:
    """The ids of a problem's prompt: its own, or the rendered and encoded text."""
    if problem.prompt_ids is not None:
        return list(problem.prompt_ids)
    return tokenizer.encode_prompt(problem.prompt)


def _check_model(config: RunConfig) -> None:
    from dllmx.models.loading import device_of, load_shape

    load_shape(config.model)
    device_of(config.hardware)


def _check_problems(config: RunConfig, problems: Sequence[Problem]) -> None:
    name = config.task.name
    if not problems:
        raise ConfigError(f"task={name} has no problems to decode. Check task.limit and its data.")
    ids = {problem.id for problem in problems}
    if len(ids) < len(problems):
        raise ConfigError(f"task={name} gives {len(problems)} problems but {len(ids)} ids.")
