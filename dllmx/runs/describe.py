"""The descriptive files of a run folder: its configuration and what it ran on."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from dllmx.config.schema import RunConfig
from dllmx.metrics.tokens import TOKEN_DEFINITION
from dllmx.runs import environment, files
from dllmx.runs.plan import PlannedRun, prompt_ids

if TYPE_CHECKING:
    from dllmx.decode.decoder import Decoder
    from dllmx.models.tokenizer import Tokenizer


def config_yaml(config: RunConfig) -> str:
    """The resolved configuration as YAML."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.create(asdict(config)))


def write_description(
    run: PlannedRun, decoder: Decoder, tokenizer: Tokenizer, resumed_at: int
) -> None:
    """Write ``run.json``; later attempts add themselves under ``attempts``."""
    earlier = []
    if run.folder.description.exists():
        earlier = run.folder.read_json(run.folder.description)["attempts"]
    attempt = {
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "samples_before": resumed_at,
        "machine": environment.describe_machine(run.config.hardware.device),
        "git": environment.git_state(),
    }
    files.write_json(
        run.folder.description,
        {
            "name": run.name,
            "hash": run.identity,
            "seed": run.config.seed,
            "problems": len(run.problems),
            "protocol": _protocol(run),
            "effective": effective_settings(decoder),
            "first_sample": _first_sample(run, tokenizer),
            "attempts": [*earlier, attempt],
        },
    )


def effective_settings(decoder: Decoder) -> dict[str, Any]:
    """What decodes: the loaded model's shape, dtype and device, and the configs of the parts."""
    model, config = decoder.model, decoder.config
    return {
        "model": asdict(model.shape),
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": str(model.device),
        "sampler": asdict(config.sampler),
        "cache": asdict(config.cache),
        "commit": asdict(config.commit),
        "batch_size": config.batch_size,
    }


def _protocol(run: PlannedRun) -> dict[str, Any]:
    """What must be equal for two accuracies to be comparable."""
    config = run.config
    return {
        "task": asdict(config.task),
        "chat": config.model.chat,
        "sampler": asdict(config.sampler),
        "tokens": TOKEN_DEFINITION,
    }


def _first_sample(run: PlannedRun, tokenizer: Tokenizer) -> dict[str, Any]:
    problem = run.problems[0]
    ids = prompt_ids(problem, tokenizer)
    return {"id": problem.id, "prompt_ids": ids, "readable": tokenizer.readable(ids)}
