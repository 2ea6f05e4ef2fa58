from __future__ import annotations

from typing import Any

import pytest
import torch
from building import decode_config, random_model
from reference_runs import TIE, commits_of, recorded, recorded_names, reference_model
from seeing import MASK, view_of

from dllmx.commits import saber
from dllmx.decode.decoder import Decoded, Decoder, Request
from dllmx.engine.interface import Block, Commit, Prediction
from dllmx.engine.sequence import SequenceState
from dllmx.errors import ConfigError

RECORDED = [n for n in recorded_names("trajectories-papers") if n.startswith("saber")]


def decoder_of(name: str, settings: dict[str, Any]) -> Decoder:
    if name.startswith("saber_dream"):
        sampler = {"name": "full", "gen_length": 48}
        commit: dict[str, Any] = {"name": "saber", "n": settings["min_accept"], "compat": "dream"}
    else:
        sampler = {"name": "blocks", "gen_length": 48, "block_length": settings["block_length"]}
        commit = {"name": "saber", "n": settings["n"], "compat": "llada"}
    config = decode_config(sampler, {"name": "none"}, commit)
    return Decoder(reference_model("tiny-llada"), config)


def first_difference(ours: Decoded, theirs: dict[str, Any]) -> int | None:
    for i, (our, their) in enumerate(zip(ours.steps, theirs["steps"], strict=False)):
        if our.commit != commits_of(their) or sorted(our.remask) != sorted(their["remask"]):
            return i
    return None if len(ours.steps) == len(theirs["steps"]) else len(ours.steps)


@pytest.mark.parametrize("name", RECORDED)
def test_decode_repeats_the_released_rules_up_to_rounding(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saber compares nearly equal confidences all the time; the released code rounds them to
    float32. Where a run leaves the recorded one, the values compared at that step must be equal
    within a few float32 roundings; on the files' stable prompts of LLaDA's rule it never may.
    """
    decisions: list[tuple[Prediction, Commit]] = []
    select = saber.Commit.select

    def watched(rule: saber.Commit, view: Any, prediction: Prediction) -> Commit:
        decision = select(rule, view, prediction)
        decisions.append((prediction, decision))
        return decision

    monkeypatch.setattr(saber.Commit, "select", watched)
    found = recorded("trajectories-papers", name)
    decoder, same = decoder_of(name, found["settings"]), 0
    for run in found["runs"]:
        decisions.clear()
        decoded = decoder.decode([Request("x", run["prompt_ids"], seed=0)])[0]
        step = first_difference(decoded, run)
        if step is None:
            same += 1
            continue
        stable = run["prompt"] in (found.get("stable_prompts") or ())
        assert not (stable and "official" in name), f"prompt {run['prompt']} step {step}"
        assert _is_near_tie(decisions, step, run["steps"][step]), f"prompt {run['prompt']}"
    assert same >= 4


def _is_near_tie(
    decisions: list[tuple[Prediction, Commit]], step: int, theirs: dict[str, Any]
) -> bool:
    """Whether what only one side committed or re-masked lies within a tie of something.

    Commits compare confidences, re-masks their fall since the step before.
    """
    prediction, ours = decisions[step]
    value = _confidences(prediction)
    disputed = {p for p, _ in commits_of(theirs)} ^ set(ours.positions.tolist())
    if not disputed:
        disputed = set(theirs["remask"]) ^ set(ours.remask.tolist())
        before = _confidences(decisions[step - 1][0])
        value = {position: now - before[position] for position, now in value.items()}
    rivals = [*value.values(), ours.note["threshold"]]
    return all(
        sum(abs(value[position] - rival) < TIE for rival in rivals) > 1 for position in disputed
    )


def _confidences(prediction: Prediction) -> dict[int, float]:
    return dict(zip(prediction.positions.tolist(), prediction.confidence.tolist(), strict=True))


def test_four_configurations_are_recorded() -> None:
    assert len(RECORDED) == 4


def one_block(tokens: list[int]) -> Any:
    return view_of(tokens, 1, Block(0, 1, len(tokens), 1, 1))


def seen(confidence: list[float], tokens: list[int]) -> Prediction:
    eligible = torch.tensor([token == MASK for token in tokens[1:]])
    values = torch.tensor(confidence, dtype=torch.float64)
    count = len(confidence)
    return Prediction(torch.arange(1, 1 + count), torch.arange(10, 10 + count), values, eligible)


def test_the_first_step_accepts_the_n_surest_and_takes_back_the_weaker() -> None:
    tokens = [1, MASK, MASK, MASK, MASK]
    rule = saber.Commit(saber.Config("saber"))
    decision = rule.select(one_block(tokens), seen([0.5, 0.9, 0.8, 0.1], tokens))
    assert sorted(decision.positions.tolist()) == [2, 3]
    assert decision.remask.tolist() == [3]


def test_the_paper_takes_back_one_in_mu_of_the_draft() -> None:
    tokens = [1] + [MASK] * 8
    rule = saber.Commit(saber.Config("saber", n=6, mu=3))
    decision = rule.select(
        one_block(tokens), seen([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.1, 0.1], tokens)
    )
    assert decision.positions.numel() == 6
    assert sorted(decision.remask.tolist()) == [5, 6]


def test_nothing_is_taken_back_once_everything_is_accepted() -> None:
    tokens = [1, MASK, MASK]
    decision = saber.Commit(saber.Config("saber")).select(
        one_block(tokens), seen([0.5, 0.9], tokens)
    )
    assert decision.positions.numel() == 2
    assert decision.remask.numel() == 0


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("compat", ["none", "llada", "dream"])
@pytest.mark.parametrize("sampler", ["full", "blocks"])
@pytest.mark.parametrize("cache", ["none", "prefix", "dual"])
def test_re_masks_never_leave_a_mask_behind(
    family: str, compat: str, sampler: str, cache: str
) -> None:
    settings: dict[str, Any] = {"name": sampler, "gen_length": 24}
    if sampler == "blocks":
        settings["block_length"] = 8
    config = decode_config(settings, {"name": cache}, {"name": "saber", "compat": compat})
    decoded = Decoder(random_model(family), config).decode([Request("x", [3, 1, 4], seed=0)])[0]
    assert 59 not in decoded.output_ids
    assert decoded.counters.remasks == sum(len(step.remask) for step in decoded.steps) > 0


def test_a_token_that_comes_back_is_a_flip_flop() -> None:
    state = SequenceState("x", torch.tensor([1, MASK]), 1, MASK, 58, torch.Generator())
    state.apply(Commit(torch.tensor([1]), torch.tensor([7]), remask=torch.tensor([1])), False)
    state.apply(Commit(torch.tensor([1]), torch.tensor([7])), False)
    assert (state.counters.remasks, state.counters.flip_flops) == (1, 1)


def test_mu_is_refused_where_the_released_rule_has_none() -> None:
    with pytest.raises(ConfigError, match=r"commit\.mu=4 .*compat=llada"):
        saber.Config("saber", mu=4, compat="llada")
