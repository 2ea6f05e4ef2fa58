"""From a finished run to a checkpoint folder in the Hub's layout, with its model card."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from dllmx.models import checkpoint
from dllmx.training import parameters, vocabulary
from dllmx.training.card import write_card
from dllmx.training.evaluate import Result
from dllmx.training.loop import Run


def export_model(run: Run, folder: Path, results: Sequence[Result]) -> None:
    """Write float32 weights, config.json, tokenizer files and the model card to ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: value.detach() for name, value in run.weights.items()}
    checkpoint.save_checkpoint(folder, parameters.as_model(run.shape, weights), torch.float32)
    vocabulary.save_tokenizer(run.shape.family, folder)
    count = sum(value.numel() for value in weights.values())
    card = write_card(run.config, run.shape, run.progress, count, results)
    (folder / "README.md").write_text(card, encoding="utf-8")
