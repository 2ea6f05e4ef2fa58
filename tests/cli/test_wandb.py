"""W&B without an account: offline, and never in the way of the run."""

from __future__ import annotations

import json

import pytest
from commanding import CHECKPOINT, Command

MODEL = (f"model.path={CHECKPOINT}", "model.chat=false", "task.limit=2")


def test_auto_without_an_account_says_how_to_get_one(dllmx: Command) -> None:
    result = dllmx("run", *MODEL)
    assert result.status == 0
    assert result.err.count("wandb login") == 1
    assert not (dllmx.only_run() / "wandb.json").exists()


def test_wandb_without_an_account_logs_offline_into_the_run_folder(dllmx: Command) -> None:
    import wandb

    result = dllmx("run", *MODEL, "logger=wandb")
    assert result.status == 0
    assert "W&B (offline): wandb sync" in result.err
    folder = dllmx.only_run()
    assert json.loads((folder / "wandb.json").read_text())["mode"] == "offline"
    assert list(folder.glob("wandb/offline-run-*/*.wandb"))
    assert sorted(path.name for path in dllmx.folder.iterdir()) == ["outputs"]
    assert wandb.run is None


def test_a_finished_run_is_mirrored_once_and_later_too(dllmx: Command) -> None:
    dllmx("run", *MODEL, "logger=none")
    assert "W&B (offline)" in dllmx("run", *MODEL, "logger=wandb").err
    assert "W&B" not in dllmx("run", *MODEL, "logger=wandb").err
    assert len(list(dllmx.only_run().glob("wandb/offline-run-*"))) == 1


def test_each_job_of_a_multirun_is_a_run_of_its_own_in_one_group(
    dllmx: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb

    started = []
    init = wandb.init
    monkeypatch.setattr(
        wandb, "init", lambda **options: (started.append(options), init(**options))[1]
    )
    dllmx("run", "-m", *MODEL, "logger=wandb", "policy=baseline,parallel")
    first, second = started
    assert first["group"] == second["group"] is not None
    assert first["name"] != second["name"]
    assert first["mode"] == "offline"
    for folder in dllmx.run_folders():
        assert len(list(folder.glob("wandb/offline-run-*"))) == 1


def test_a_failing_mirror_does_not_fail_the_run(
    dllmx: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb

    def refuse(**options: object) -> None:
        raise wandb.Error("the service is down")

    monkeypatch.setattr(wandb, "init", refuse)
    result = dllmx("run", *MODEL, "logger=wandb")
    assert result.status == 0
    assert "W&B failed (the service is down); the local files are complete" in result.err
    assert (dllmx.only_run() / "metrics.json").exists()
