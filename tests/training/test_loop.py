"""Training runs: they learn, they stop and go on, they refuse foreign states."""

from dataclasses import replace

import pytest
import torch

from dllmx.errors import ConfigError, RunError
from dllmx.models.model import Model
from dllmx.training import data, loop, shapes, state
from dllmx.training.config import TrainConfig


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setattr(shapes, "LAYERS", 1)
    monkeypatch.setattr(shapes, "WIDTH", 32)
    monkeypatch.setattr(shapes, "MLP_WIDTH", 32)
    return TrainConfig(
        steps=6, batch=4, warmup=2, threads=1, save_every=2, evaluate_every=4,
        evaluate_problems=2, output=str(tmp_path / "whole"),
    )  # fmt: skip


def stop_after(step):
    def on_progress(report):
        if report.step == step:
            raise KeyboardInterrupt

    return on_progress


@pytest.mark.parametrize("model", ["tiny-llada", "tiny-dream"])
@pytest.mark.parametrize("killed_at", [1, 3, 4, 5])
def test_a_run_that_was_killed_ends_with_the_same_weights(config, tmp_path, model, killed_at):
    whole = loop.train(replace(config, model=model))
    broken = replace(config, model=model, output=str(tmp_path / "broken"))
    with pytest.raises(KeyboardInterrupt):
        loop.train(broken, stop_after(killed_at))
    resumed = loop.train(broken)
    assert resumed.progress.mix == whole.progress.mix
    for name, value in whole.weights.items():
        assert torch.equal(value, resumed.weights[name]), name


def test_the_loss_falls(config):
    losses = []
    fast = replace(config, steps=40, batch=16, rate=5e-3, evaluate_problems=0)
    loop.train(fast, lambda report: losses.append(report.loss))
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


def test_half_of_the_canvases_of_every_step_see_stored_rows(config, monkeypatch):
    seen = []
    forward = Model.forward_block_logits

    def watched(model, *tensors):
        seen.append([len(tensor) for tensor in tensors])
        return forward(model, *tensors)

    monkeypatch.setattr(Model, "forward_block_logits", watched)
    loop.train(replace(config, batch=16, steps=3, evaluate_problems=0))
    assert seen == [[8, 8, 8, 8]] * 3


def test_the_loss_is_that_of_each_view(config):
    run = loop.open_run(replace(config, batch=8))
    batch = run.stream.batch(0, run.progress.mix)
    with torch.no_grad():
        found = loop._logits(run.model, batch)
        cached = run.model.forward_block_logits(
            batch.stored, batch.noisy[:4], batch.block, batch.visible[:4]
        )
        whole = run.model.forward_logits(batch.noisy, batch.visible)
    wanted = torch.cat([cached, whole[4:]])[batch.masked]
    torch.testing.assert_close(found, wanted)


def test_the_mix_favours_what_is_behind():
    mix = loop.task_mix({"tiny-math": 0.8, "tiny-lists": 0.6, "tiny-code": 1.0})
    wanted = {"tiny-math": 0.4, "tiny-lists": 0.4, "tiny-code": loop.SMALLEST_ERROR}
    assert mix == pytest.approx(
        {name: value / sum(wanted.values()) for name, value in wanted.items()}
    )


def test_the_mix_follows_an_evaluation(config):
    run = loop.train(config)
    assert [entry["step"] for entry in run.progress.log] == [4, 6]
    assert sum(run.progress.mix.values()) == pytest.approx(1)


def test_steps_may_be_added_to_a_finished_run(config):
    loop.train(replace(config, decay=0.0))
    longer = loop.train(replace(config, decay=0.0, steps=8))
    assert longer.progress.step == 8


def test_a_state_of_other_settings_is_refused(config):
    loop.train(config)
    with pytest.raises(ConfigError, match="seed=0, not 1"):
        loop.train(replace(config, seed=1))


def test_a_damaged_state_is_named(config):
    loop.train(config)
    path = config.folder / "state.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(RunError, match="delete it"):
        loop.train(config)


def test_a_kill_while_writing_leaves_the_old_state(config, monkeypatch):
    loop.train(config)
    before = (config.folder / "state.safetensors").read_bytes()

    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(state.os, "fsync", fail)
    with pytest.raises(KeyboardInterrupt):
        loop.train(replace(config, steps=8))
    assert (config.folder / "state.safetensors").read_bytes() == before


def test_a_loss_that_is_not_a_number_stops_the_run(config, monkeypatch):
    monkeypatch.setattr(loop.F, "cross_entropy", lambda *_: torch.tensor(float("nan")))
    with pytest.raises(RunError, match="lower rate"):
        loop.train(config)


def test_training_problems_that_set_the_mix_are_not_held_out():
    for name, draw in data.draws_at(data.BEGINNING).items():
        problems = loop.evaluate.training_problems(name, draw, 30, loop.WATCH_SEED)
        assert not any(data.split.is_held_out(problem.prompt) for problem in problems)
