"""Mistakes as people make them: one or two lines that say what to type, before any work is lost."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from commanding import CHECKPOINT, SMALL, Command

ALLOWED_LINES = 2


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("policy=fast_dllm", ["policy=fast_dllm", "Did you mean fast-dllm?", "baseline"]),
        ("model=gpt", ["model=gpt", "Options of model:", "llada", "tiny-dream"]),
        ("task=gsm", ["task=gsm", "Options of task:"]),
        ("cache=duel", ["cache=duel", "Did you mean dual?"]),
        ("sampler.gen_len=64", ["sampler.gen_len", "Did you mean sampler.gen_length?"]),
        ("threshold=0.9", ["threshold", "Did you mean commit.threshold?"]),
        ("sede=1", ["sede", "Did you mean seed?"]),
        ("+new=1", ["new is not a configuration key"]),
        ("cache.tau=1", ["cache.tau is not a configuration key", "cache.name"]),
        ("seed=abc", ["seed=abc", "int"]),
        ("seed=-1", ["seed=-1", "0 or more"]),
        ("batch_size=0", ["batch_size=0", "1 or more"]),
        ("batch_size=1.5", ["batch_size=1.5", "int"]),
        ("trace=perhaps", ["trace=perhaps", "bool"]),
        ("commit.threshold=high", ["commit.threshold", "high"]),
        ("commit.threshold=1.5", ["commit.threshold=1.5", "[0.0, 1.0]"]),
        ("task.limit=0", ["task.limit=0", "1"]),
        ("sampler.block_length=5", ["sampler.block_length=5", "divide", "32"]),
        ("sampler.temperature=-1", ["sampler.temperature=-1", "0"]),
        ("sampler.steps=16", ["sampler.steps=16", "commit=quota"]),
        ("hardware=gpu", ["hardware=gpu", "Options of hardware: a100-80gb, cpu, cuda"]),
        ("hardware.dtype=float64", ["hardware.dtype=float64", "bfloat16"]),
        ("model.path=/no/such/folder", ["model.path=/no/such/folder", "does not exist"]),
        ("logger=wandbb", ["logger=wandbb", "Did you mean wandb?"]),
        ("policy=baseline,parallel", ["several values", "dllmx run -m policy=baseline,parallel"]),
        ("policy", ["cannot read the argument 'policy'", "key=value"]),
        ("commit.threshold=[0.9", ["cannot read the argument", "key=value"]),
        ("~commit", ["commit", "dllmx list commit"]),
        ("--limit=3", ["--limit=3 is not a flag"]),
    ],
)
def test_a_wrong_override_is_explained(dllmx: Command, override: str, said: list[str]) -> None:
    result = dllmx("run", *SMALL, override)
    assert result.status == 2
    assert result.out == ""
    assert result.err.startswith("error: ")
    assert len(result.err.splitlines()) <= ALLOWED_LINES
    for words in said:
        assert words in result.err
    assert not (dllmx.folder / "outputs" / "runs").exists()


def test_a_model_that_is_not_on_this_machine_says_how_to_get_it(
    dllmx: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(dllmx.folder / "hub"))
    result = dllmx("run", "model=llada", "task.limit=1")
    assert result.status == 2
    assert "GSAI-ML/LLaDA-8B-Instruct is not on this machine" in result.err
    assert "model.path=" in result.err


@pytest.mark.skipif(os.geteuid() == 0 and not os.path.exists("/proc/1"), reason="needs /proc")
@pytest.mark.parametrize("flags", [[], ["-m"]])
def test_an_unwritable_output_folder_is_found_before_the_model_loads(
    dllmx: Command, flags: list[str]
) -> None:
    (dllmx.folder / "file").write_text("")
    result = dllmx("run", *flags, *SMALL, "output=file/results", "seed=0")
    assert result.status == (2)
    assert "output: cannot write to" in result.err
    assert "output=FOLDER" in result.err
    assert "loading" not in result.err


def test_a_cuda_profile_without_a_gpu_is_refused_before_loading(
    dllmx: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    result = dllmx("run", *SMALL, "hardware=cuda")
    assert result.status == 2
    assert "hardware=cpu" in result.err
    assert "loading" not in result.err


def test_a_corrupt_checkpoint_fails_the_run_with_its_name(dllmx: Command) -> None:
    broken = dllmx.folder / "broken"
    shutil.copytree(CHECKPOINT, broken)
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    result = dllmx("run", *SMALL, f"model.path={broken}")
    assert result.status == 1
    assert str(broken) in result.err
    assert len(result.err.splitlines()) <= ALLOWED_LINES + 1  # the line that says what is loaded
    assert not (dllmx.only_run() / "metrics.json").exists()


def test_a_checkpoint_of_another_family_is_refused(dllmx: Command) -> None:
    result = dllmx("run", *SMALL, "model=tiny-dream")
    assert result.status == 2
    assert "family" in result.err


def test_damaged_samples_are_named_with_the_way_out(dllmx: Command) -> None:
    dllmx("run", *SMALL)
    folder = dllmx.only_run()
    (folder / "metrics.json").unlink()
    lines = (folder / "samples.jsonl").read_text().splitlines()
    (folder / "samples.jsonl").write_text("\n".join([lines[0][:20], *lines[1:]]) + "\n")
    result = dllmx("run", *SMALL)
    assert result.status == 1
    assert "line 1 is damaged" in result.err
    assert dllmx("run", *SMALL, "overwrite=true").status == 0


def test_a_run_that_is_at_work_is_not_disturbed(dllmx: Command) -> None:
    from dllmx.runs.lock import locked

    dllmx("run", *SMALL)
    with locked(dllmx.only_run()):
        result = dllmx("run", *SMALL, "overwrite=true")
    assert result.status == 1
    assert "is already running" in result.err
    assert json.loads((dllmx.only_run() / "metrics.json").read_text())["samples"] == 4
