"""A plain decoder without caches, to watch a model while it trains.

It is kept apart from the engine on purpose: the recipe must not change when the engine does.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dllmx.models.model import Model
from dllmx.tasks import split
from dllmx.tasks.problem import Problem, Score
from dllmx.training import data, vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True, slots=True)
class Result:
    """Problems tried and answered right, forwards, and tokens that are not end-of-text.

    ``threshold`` is None where one token was committed at a time.
    """

    task: str
    threshold: float | None
    problems: int
    correct: int
    forwards: int
    tokens: int
    texts: tuple[str, ...] = ()
    scores: tuple[Score, ...] = ()

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return self.correct / max(self.problems, 1)

    @property
    def reached(self) -> float:
        """Share of right final answers, however they were reached."""
        right = sum(score.detail.get("final", score.correct) for score in self.scores)
        return right / max(self.problems, 1)

    @property
    def tokens_per_forward(self) -> float:
        """Tokens that are not end-of-text over forwards, each problem's counted on its own."""
        return self.tokens / max(self.forwards, 1)


def training_problems(name: str, draw: split.Draw, count: int, seed: int) -> list[Problem]:
    """Problems that are not held out, for steering the mix without a look at the test part."""
    rng = random.Random(f"{name}/watch/{seed}")
    examples = [split.training_example(draw, rng) for _ in range(count)]
    return [
        Problem(f"{name}-watch-{number:04d}", example.prompt, example.reference)
        for number, example in enumerate(examples)
    ]


def held_out(model: Model, count: int, thresholds: Sequence[float | None]) -> list[Result]:
    """Results on the first ``count`` held-out problems of every task, for every threshold."""
    results = []
    for name, module in data.TASKS.items():
        task: Any = module.Task(module.Config(name, limit=count))
        problems = task.problems()
        results += [evaluate(model, name, problems, threshold) for threshold in thresholds]
    return results


def evaluate(
    model: Model, name: str, problems: Sequence[Problem], threshold: float | None = None
) -> Result:
    """Decode and score ``problems`` of task ``name``.

    Without ``threshold`` one token is committed at a time; with it, all in the block that are at
    least that probable, and always the most probable one.
    """
    tokenizer = vocabulary.build_tokenizer(model.shape.family)
    prompts = [
        tokenizer.encode(
            vocabulary.render_prompt(model.shape.family, problem.prompt), add_special_tokens=False
        ).ids
        for problem in problems
    ]
    output, forwards = decode(model, prompts, data.GEN_LENGTH, data.BLOCK, threshold)
    texts = [read_text(model, tokenizer, row) for row in output.tolist()]
    scores = _score(name, problems, texts)
    return Result(
        task=name,
        threshold=threshold,
        problems=len(problems),
        correct=sum(score.correct for score in scores),
        forwards=int(forwards.sum()),
        tokens=int((output != model.shape.eos_id).sum()),
        texts=tuple(texts),
        scores=tuple(scores),
    )


@torch.no_grad()
def decode(
    model: Model, prompts: Sequence[Sequence[int]], length: int, block: int, threshold: float | None
) -> tuple[Tensor, Tensor]:
    """Responses [B, length] and the forwards [B] that each of them took."""
    canvas, visible = _canvas(model, prompts, length)
    longest = canvas.shape[1] - length
    forwards = torch.zeros(len(prompts), dtype=torch.long)
    for start in range(longest, longest + length, block):
        inside = slice(start, start + block)
        while (canvas[:, inside] == model.shape.mask_id).any():
            waiting = canvas[:, inside] == model.shape.mask_id  # [B, block]
            busy = waiting.any(1)
            forwards += busy
            logits = model.forward_logits(canvas[busy], visible[busy])[:, inside]
            logits[..., model.shape.mask_id] = -torch.inf
            probability, token = logits.float().softmax(-1).max(-1)
            probability = probability.masked_fill(~waiting[busy], -1.0)
            chosen = torch.zeros_like(waiting[busy])
            chosen.scatter_(1, probability.argmax(1, keepdim=True), True)
            if threshold is not None:
                chosen |= probability >= threshold
            canvas[busy, inside] = torch.where(chosen, token, canvas[busy, inside])
    return canvas[:, longest:], forwards


def _canvas(model: Model, prompts: Sequence[Sequence[int]], length: int) -> tuple[Tensor, Tensor]:
    """Left-padded prompts with ``length`` masks behind them, and what is visible, [B, T] each."""
    longest = max(map(len, prompts))
    pad, mask = model.shape.pad_id, model.shape.mask_id
    rows = [[pad] * (longest - len(p)) + list(p) + [mask] * length for p in prompts]
    visible = [[i >= longest - len(p) for i in range(longest + length)] for p in prompts]
    return torch.tensor(rows), torch.tensor(visible)


def read_text(model: Model, tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """The answer: what comes before the end of the turn or of the text."""
    ends = [i for i, token in enumerate(ids) if token in (model.shape.eos_id, model.shape.eot_id)]
    answer = ids[: ends[0]] if ends else ids
    return str(tokenizer.decode(list(answer)))


def _score(name: str, problems: Sequence[Problem], texts: Sequence[str]) -> list[Score]:
    module = data.TASKS[name]
    task: Any = module.Task(module.Config(name))
    if hasattr(task, "score_all"):
        return list(task.score_all(problems, texts))
    return [task.score(problem, text) for problem, text in zip(problems, texts, strict=True)]
