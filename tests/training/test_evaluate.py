"""The plain decoder that watches a model."""

import pytest
import torch

from dllmx.tasks import tiny_lists
from dllmx.tasks.problem import Score
from dllmx.training import data, evaluate, parameters, vocabulary
from dllmx.training.evaluate import Result
from dllmx.training.shapes import tiny_shape


class Oracle:
    """Stands for a model that knows the responses, and is surer of some tokens than of others."""

    def __init__(self, answers, certainty):
        self.shape = tiny_shape("tiny-llada")
        self.answers = answers
        self.certainty = certainty

    def forward_logits(self, ids, visible):
        length = self.answers.shape[1]
        probabilities = torch.full((*ids.shape, self.shape.vocab), 1e-6)
        certain = self.certainty.expand(len(ids), length)[..., None]
        probabilities[:, -length:].scatter_(2, self.answers[: len(ids)][..., None], certain)
        return (probabilities / probabilities.sum(-1, keepdim=True)).log()


def decode(certainty, threshold):
    answers = torch.arange(8).expand(2, 8)
    return evaluate.decode(Oracle(answers, certainty), [[1, 2, 3], [1]], 8, 4, threshold)


def test_one_token_a_forward_takes_as_many_forwards_as_tokens():
    output, forwards = decode(torch.ones(8), None)
    assert output.tolist() == [list(range(8))] * 2
    assert forwards.tolist() == [8, 8]


def test_a_threshold_commits_all_that_is_sure_block_by_block():
    assert decode(torch.ones(8), 0.9)[1].tolist() == [2, 2]
    unsure = torch.tensor([1.0, 1, 1, 1, 1e-6, 1, 1e-6, 1])
    assert decode(unsure, 0.9)[1].tolist() == [4, 4]


def test_left_padding_changes_no_output():
    shape = tiny_shape("tiny-dream")
    with torch.no_grad():
        model = parameters.as_model(shape, parameters.initial_parameters(shape, 0))
    prompts = [[5, 6, 7, 8, 9], [4, 3]]
    both, _ = evaluate.decode(model, prompts, 8, 4, 0.9)
    alone, _ = evaluate.decode(model, prompts[1:], 8, 4, 0.9)
    assert both[1].tolist() == alone[0].tolist()


@pytest.mark.parametrize("end", ["<|eot_id|>", "<|endoftext|>"])
def test_an_answer_is_read_up_to_its_end(end):
    ids = vocabulary.token_ids("llada")
    shape = tiny_shape("tiny-llada")
    model = parameters.as_model(shape, parameters.initial_parameters(shape, 0))
    row = [ids["["], 5, ids["]"], ids[end], 7]
    assert evaluate.read_text(model, vocabulary.build_tokenizer("llada"), row) == "[ 5 ]"


@pytest.mark.parametrize("name", data.TASKS)
def test_an_untrained_model_is_scored_and_counted(name):
    shape = tiny_shape("tiny-llada")
    with torch.no_grad():
        model = parameters.as_model(shape, parameters.initial_parameters(shape, 0))
    result = evaluate.evaluate(
        model, name, evaluate.training_problems(name, data.TASKS[name].draw, 2, 0), 0.0
    )
    assert (result.problems, result.correct, result.forwards) == (2, 0, 4)


def test_a_final_answer_counts_as_reached_without_its_working():
    scores = (
        Score(False, "7", {"final": True}),
        Score(False, "8", {"final": False}),
        Score(True, "[ 1 ]"),
        Score(False, None),
    )
    result = Result("tiny-math", None, 4, 1, 9, 9, scores=scores)
    assert (result.accuracy, result.reached) == (0.25, 0.5)


def test_held_out_results_name_task_and_threshold(monkeypatch):
    seen = []
    monkeypatch.setattr(evaluate, "evaluate", lambda *arguments: seen.append(arguments))
    evaluate.held_out("model", 3, (None, 0.5))
    assert [(name, len(problems), threshold) for _, name, problems, threshold in seen] == [
        (name, 3, threshold) for name in data.TASKS for threshold in (None, 0.5)
    ]
    assert seen[2][2] == tiny_lists.Task(tiny_lists.Config("tiny-lists", limit=3)).problems()
