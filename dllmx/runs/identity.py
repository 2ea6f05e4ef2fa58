"""What makes two runs the same run, and the folder name that follows from it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dllmx.config.schema import ModelConfig, RunConfig
from dllmx.tasks.problem import Problem
from dllmx.version import VERSION

PLACES = ("output", "logger", "overwrite")
"""Top-level keys that say where results go; they are no part of a run's identity."""

SUFFIXES = (".safetensors", ".json", ".jinja", ".txt")
"""Files of a checkpoint that decide results: weights, configuration, tokenizer, chat template."""

PIECES = 64
PIECE_BYTES = 64 * 1024


def effective_config(config: RunConfig) -> dict[str, Any]:
    """The configuration that decides the results: typed, defaults filled, places left out."""
    return {key: value for key, value in asdict(config).items() if key not in PLACES}


def run_hash(config: RunConfig, problems: Sequence[Problem], checkpoint: Path | None) -> str:
    """Eight hexadecimal digits that identify a run.

    They cover the effective configuration, the version of dllmx, the problems themselves and the
    checkpoint's content, but not the paths where these lie.
    """
    effective = effective_config(config)
    effective["model"] = _without_path(config.model)
    content = [checkpoint_fingerprint(checkpoint)]
    if Path(config.model.tokenizer).is_dir():
        content.append(checkpoint_fingerprint(Path(config.model.tokenizer)))
    return digest((VERSION, effective, _problems_digest(problems), content))[:8]


def run_name(config: RunConfig, identity: str) -> str:
    """Name of the run folder: model, policy, task and the hash."""
    return f"{config.model.name}-{config.policy.name}-{config.task.name}-{identity}"


def checkpoint_fingerprint(folder: Path | None) -> dict[str, Any]:
    """Fingerprint of each weight, configuration and tokenizer file; empty without a folder."""
    if folder is None:
        return {}
    return {
        path.name: file_fingerprint(path)
        for path in sorted(folder.iterdir())
        if path.is_file() and path.suffix in SUFFIXES
    }


def file_fingerprint(path: Path) -> str:
    """Size and a digest of pieces spread evenly over the file, all of it where it is small.

    Fine-tuned checkpoints differ from their origin in content alone, and reading all of a large
    one would take longer than many a run.
    """
    size = path.stat().st_size
    last = max(0, size - PIECE_BYTES)
    content = hashlib.sha256(str(size).encode())
    with path.open("rb") as stream:
        for start in sorted({last * piece // (PIECES - 1) for piece in range(PIECES)}):
            stream.seek(start)
            content.update(stream.read(PIECE_BYTES))
    return content.hexdigest()


def digest(value: Any) -> str:
    """SHA-256 of a JSON-able value, the same in every process."""
    text = json.dumps(value, sort_keys=True, default=str, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def sample_seed(seed: int, problem_id: str) -> int:
    """Seed of one problem's random draws: the same whatever is decoded before or beside it."""
    return int(digest([seed, problem_id])[:12], 16)


def _problems_digest(problems: Sequence[Problem]) -> str:
    return digest([asdict(problem) for problem in problems])


def _without_path(model: ModelConfig) -> dict[str, Any]:
    return {key: value for key, value in asdict(model).items() if key != "path"}
