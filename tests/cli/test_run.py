from __future__ import annotations

import json

import pytest
import torch
from commanding import MODEL, SMALL, Command, read_samples
from omegaconf import OmegaConf

from dllmx.metrics.summary import TIMING_FIELDS
from dllmx.models.model import Model


def test_a_run_writes_its_folder_and_prints_its_metrics(dllmx: Command) -> None:
    result = dllmx("run", *SMALL, "policy=fast-dllm")
    assert result.status == 0
    for name in ("accuracy", "NFE", "TPF", "tpf_all", "TPS", "recompute", "memory", "empty"):
        assert name in result.out
    folder = dllmx.only_run()
    assert folder.name.startswith("tiny-llada-fast-dllm-tiny-math-")
    assert {path.name for path in folder.iterdir()} == {
        "config.yaml", "run.json", "samples.jsonl", "metrics.json", ".lock"
    }  # fmt: skip
    assert sorted(path.name for path in dllmx.folder.iterdir()) == ["outputs"]


def test_the_folder_says_what_was_run_and_on_what(dllmx: Command) -> None:
    dllmx("run", *SMALL, "seed=3")
    folder = dllmx.only_run()
    described = json.loads((folder / "run.json").read_text())
    config = OmegaConf.load(folder / "config.yaml")
    assert config.task.limit == 4
    assert config.sampler.gen_length == config.task.gen_length
    assert described["seed"] == 3
    assert described["name"] == folder.name
    assert described["effective"]["dtype"] == "float32"
    assert described["effective"]["cache"]["name"] == "dual"
    assert described["attempts"][0]["machine"]["packages"]["torch"] == torch.__version__
    first = read_samples(folder)[0]
    assert described["first_sample"]["prompt_ids"] == first["prompt_ids"]
    assert described["first_sample"]["readable"]


def test_sample_lines_agree_with_each_other_and_with_the_metrics(dllmx: Command) -> None:
    dllmx("run", *SMALL)
    samples = read_samples(dllmx.only_run())
    metrics = json.loads((dllmx.only_run() / "metrics.json").read_text())
    assert [sample["id"] for sample in samples] == sorted({s["id"] for s in samples})
    assert metrics["nfe"] == sum(sample["nfe"] for sample in samples)
    assert metrics["tpf"] == pytest.approx(
        sum(s["tokens_non_eos"] for s in samples) / metrics["nfe"]
    )
    assert metrics["recompute_ratio"] < 0.5
    for sample in samples:
        assert sample["nfe"] == sample["counters"]["nfe"]
        assert len(sample["output_ids"]) == 32
        assert "last_full" not in sample["counters"]


def test_a_finished_run_is_skipped_and_shown(dllmx: Command) -> None:
    first = dllmx("run", *SMALL)
    before = (dllmx.only_run() / "samples.jsonl").read_bytes()
    second = dllmx("run", *SMALL)
    assert "already finished, skipped" in second.err
    assert second.out == first.out
    assert (dllmx.only_run() / "samples.jsonl").read_bytes() == before


def test_overwrite_decodes_again(dllmx: Command) -> None:
    dllmx("run", *SMALL)
    result = dllmx("run", *SMALL, "overwrite=true")
    assert "skipped" not in result.err
    assert len(read_samples(dllmx.only_run())) == 4
    assert len(json.loads((dllmx.only_run() / "run.json").read_text())["attempts"]) == 1


def test_where_results_go_does_not_make_another_run(dllmx: Command) -> None:
    dllmx("run", *SMALL)
    dllmx("run", *SMALL, "output=elsewhere")
    (moved,) = (dllmx.folder / "elsewhere" / "runs").iterdir()
    assert moved.name == dllmx.only_run().name


def test_a_batch_gives_the_answers_of_single_decodes(dllmx: Command) -> None:
    dllmx("run", *MODEL, "task.limit=5")
    dllmx("run", *MODEL, "task.limit=5", "batch_size=2")
    singles, batched = sorted(
        (read_samples(folder) for folder in dllmx.run_folders()),
        key=lambda samples: samples[0]["batch_size"],
    )
    assert [s["batch"] for s in batched] == [0, 0, 1, 1, 2]
    for single, one in zip(singles, batched, strict=True):
        assert one["output_ids"] == single["output_ids"]
        assert one["nfe"] == single["nfe"]


def test_the_trace_tells_how_each_answer_came_about(dllmx: Command) -> None:
    from dllmx.runs.trace import read_trace

    dllmx("run", *SMALL, "trace=true")
    folder = dllmx.only_run()
    samples, traces = read_samples(folder), list(read_trace(folder / "trace.jsonl.gz"))
    assert samples[-1]["trace_end"] == (folder / "trace.jsonl.gz").stat().st_size
    for sample, trace in zip(samples, traces, strict=True):
        canvas = dict(enumerate(sample["prompt_ids"]))
        for step in trace["steps"]:
            canvas |= dict(step["commit"])
        assert [canvas[i] for i in sorted(canvas)] == sample["prompt_ids"] + sample["output_ids"]
        assert len(trace["steps"]) == sample["nfe"]


def test_a_multirun_ends_with_one_table_and_ratios(dllmx: Command) -> None:
    result = dllmx("run", "-m", *SMALL, "policy=baseline,fast-dllm")
    assert result.status == 0
    assert len(dllmx.run_folders()) == 2
    assert "TPF ratio" in result.out
    assert result.out.count("tiny-math") == 2
    (sweep,) = (dllmx.folder / "outputs" / "sweeps").iterdir()
    assert len(list((sweep / "jobs").glob("*.json"))) == 2


def test_a_failing_job_neither_stops_nor_hides_the_others(dllmx: Command) -> None:
    result = dllmx("run", "-m", *SMALL, "batch_size=1,0,2", "policy=baseline")
    assert result.status == 1
    assert len(dllmx.run_folders()) == 2
    assert "1 of 3 jobs failed" in result.out
    assert "batch_size=0" in result.out
    assert "1 or more" in result.out
    assert "Traceback" not in result.err


def test_a_multirun_loads_the_model_once(dllmx: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from dllmx.models import loading
    from dllmx.runs import models

    loads = []
    load = loading.load_model
    monkeypatch.setattr(loading, "load_model", lambda *a: (loads.append(a), load(*a))[1])
    monkeypatch.setattr(models, "_loaded", {})
    dllmx("run", "-m", *SMALL, "policy=baseline,parallel", "seed=0,1")
    assert len(loads) == 1


def test_a_multirun_is_refused_as_a_whole_when_an_option_does_not_exist(dllmx: Command) -> None:
    result = dllmx("run", "-m", *SMALL, "policy=baseline,fast-dlm")
    assert result.status == 2
    assert "Did you mean fast-dllm?" in result.err
    assert not (dllmx.folder / "outputs" / "runs").exists()


def test_flags_may_stand_anywhere(dllmx: Command) -> None:
    result = dllmx("run", *SMALL, "-m", "policy=baseline,parallel")
    assert result.status == 0
    assert len(dllmx.run_folders()) == 2


def test_options_of_ones_own_are_found_in_a_config_folder(dllmx: Command) -> None:
    (dllmx.folder / "mine" / "policy").mkdir(parents=True)
    (dllmx.folder / "mine" / "policy" / "bold.yaml").write_text(
        "# @package _global_\n# Bold\n# Source: me\ndefaults:\n  - override /commit: threshold\n"
        "policy:\n  name: bold\ncommit:\n  threshold: 0.5\n"
    )
    result = dllmx("run", *SMALL, "--config-dir", "mine", "policy=bold")
    assert result.status == 0
    assert dllmx.only_run().name.startswith("tiny-llada-bold-")


def test_the_composed_configuration_can_be_shown(dllmx: Command) -> None:
    result = dllmx("run", *SMALL, "--cfg", "job")
    assert result.status == 0
    assert "gen_length: ${task.gen_length}" in result.out
    assert not (dllmx.folder / "outputs").exists()


def test_nan_logits_fail_the_run_and_mark_its_folder(
    dllmx: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    head_logits = Model.head_logits
    monkeypatch.setattr(Model, "head_logits", lambda *a: head_logits(*a) * float("nan"))
    result = dllmx("run", *SMALL)
    assert result.status == 1
    assert "NaN logits" in result.err
    assert "NaN logits" in (dllmx.only_run() / "error.txt").read_text()
    monkeypatch.undo()
    monkeypatch.chdir(dllmx.folder)
    assert dllmx("run", *SMALL).status == 0
    assert not (dllmx.only_run() / "error.txt").exists()


def test_a_failure_midway_keeps_what_was_decoded(
    dllmx: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dllmx.decode.decoder import Decoder

    decode, calls = Decoder.decode, []

    def third_fails(self: Decoder, requests: object, **kwargs: object) -> object:
        calls.append(requests)
        if len(calls) == 4:  # the warm-up is the first
            raise RuntimeError("power cut")
        return decode(self, requests, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Decoder, "decode", third_fails)
    failed = dllmx("run", *SMALL)
    assert failed.status == 1
    assert "power cut" in failed.err
    assert len(read_samples(dllmx.only_run())) == 2
    assert "RuntimeError: power cut" in (dllmx.only_run() / "error.txt").read_text()
    monkeypatch.setattr(Decoder, "decode", decode)
    resumed = dllmx("run", *SMALL)
    assert "resumed, 2 of 4 already decoded" in resumed.err
    resumed_metrics = json.loads((dllmx.only_run() / "metrics.json").read_text())
    dllmx("run", *SMALL, "output=fresh")
    (fresh,) = (dllmx.folder / "fresh" / "runs").iterdir()
    fresh_metrics = json.loads((fresh / "metrics.json").read_text())
    for metrics in (resumed_metrics, fresh_metrics):
        for name in TIMING_FIELDS:
            del metrics[name]
    assert resumed_metrics == fresh_metrics


def test_random_weights_need_no_checkpoint(dllmx: Command) -> None:
    shape = {
        "d_model": 32, "n_heads": 2, "n_kv_heads": 2, "mlp_hidden_size": 64, "vocab_size": 300,
        "embedding_size": 300, "mask_token_id": 299, "eos_token_id": 298, "pad_token_id": 298,
        "eot_token_id": 297, "bos_token_id": 296,
    }  # fmt: skip
    result = dllmx(
        "run", "model=llada", "model.weights=random", "model.layers=1", "model.tokenizer=bytes",
        "model.chat=false", "logger=none", "task.limit=1",
        *(f"model.shape.{key}={value}" for key, value in shape.items()),
    )  # fmt: skip
    assert result.status == 0
    assert dllmx.only_run().name.startswith("llada-fast-dllm-tiny-math-")
