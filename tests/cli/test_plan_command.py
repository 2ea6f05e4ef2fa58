from __future__ import annotations

import json

import pytest
from commanding import SMALL, Command, read_samples

SHORT = ("prompt_length=24", "gen_length=16", "block_length=8")


def test_a_plan_stands_beside_the_published_figures(dllmx: Command) -> None:
    result = dllmx("plan", "policy=polestar", "prompt_length=64", "tokens_per_step=2,3.67")
    assert result.status == 0, result.err
    assert "llada on a100-80gb (312 TFLOP/s, 2039 GB/s, bfloat16)" in result.out
    lines = [line.split() for line in result.out.splitlines()]
    assert [line[0] for line in lines if line and line[0] in ("full", "window", "partial")]
    (first,) = [line for line in result.out.splitlines() if "Table 1 " in line and "GSM8K" in line]
    assert "87.57" in first
    assert first.rstrip().endswith("%")
    (other,) = [line for line in result.out.splitlines() if "GH200" in line and "GSM8K" in line]
    assert other.rstrip().endswith("-")
    assert "Free of charge: activations" in result.out


@pytest.mark.parametrize("flag", ["--json", "json=true"])
def test_json_holds_the_same_plan(dllmx: Command, flag: str) -> None:
    result = dllmx("plan", "policy=fast-dllm", *SHORT, "tokens_per_step=1,4", flag)
    assert result.status == 0, result.err
    content = json.loads(result.out)
    assert content["hardware"]["name"] == "a100-80gb"
    assert [decode["steps"] for decode in content["decodes"]] == [16, 4]
    assert [decode["tokens_per_forward"] for decode in content["decodes"]] == [1.0, 4.0]
    assert content["published"] == []
    assert content["fits"]
    faster = dllmx("plan", "policy=fast-dllm", *SHORT, "hardware=h200", flag)
    assert json.loads(faster.out)["decodes"][0]["seconds"] < content["decodes"][0]["seconds"]


def test_a_model_that_is_too_large_is_said_to_be(dllmx: Command) -> None:
    result = dllmx("plan", *SHORT, "tokens_per_step=4", "hardware.memory_gb=12")
    assert "They do not fit." in result.out


@pytest.mark.parametrize("policy", ["fast-dllm", "polestar"])
def test_a_trace_gives_the_rows_that_the_engine_counted(dllmx: Command, policy: str) -> None:
    assert dllmx("run", *SMALL, f"policy={policy}", "trace=true").status == 0
    run = dllmx.only_run()
    samples = read_samples(run)
    model = [argument for argument in SMALL if argument.startswith("model.")]
    result = dllmx("plan", f"trace={run.name[:30]}", "model=tiny-llada", *model, "--json")
    assert result.status == 0, result.err
    (decode,) = json.loads(result.out)["decodes"]
    assert decode["tokens"] == sum(sample["tokens_non_eos"] for sample in samples)
    assert decode["steps"] == sum(sample["nfe"] for sample in samples)
    # Rows of a layer, beside those of all layers: full recomputation gives their number.
    counted, everything = (
        sum(sample["counters"][key] for sample in samples)
        for key in ("row_layers", "row_layers_full")
    )
    positions = sum(s["nfe"] * (len(s["prompt_ids"]) + len(s["output_ids"])) for s in samples)
    computed = sum(kind["steps"] * kind["rows"] for kind in decode["kinds"])
    assert counted < everything
    assert computed * everything / positions == pytest.approx(counted)
    on_llada = dllmx("plan", f"trace={run}", "hardware=h100")
    assert "llada on h100" in on_llada.out
    assert f"{policy}, all 4 decodes" in on_llada.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["hardware=cpu"], "hardware=cpu states no peaks"),
        (["prompt_length=0"], "prompt_length=0 must be a number, 1 or more"),
        (["tokens_per_step=0.5"], "tokens_per_step=0.5 must be a number, 1 or more"),
        (["task=tiny-code"], "has no effect on dllmx plan"),
        (["trace=nothing", "policy=polestar"], "the run of the trace has its own"),
        (["trace=nothing", "prompt_length=12"], "the run of the trace has its own"),
        (["trace=nothing"], "no run called nothing"),
        (["json=yes"], "json=yes is not an option"),
        (["--jason"], "Did you mean json=...?"),
    ],
)
def test_what_cannot_be_planned_is_refused(dllmx: Command, arguments: list[str], said: str) -> None:
    result = dllmx("plan", *arguments)
    assert result.status == 2
    assert said in result.err


def test_a_run_without_a_trace_is_refused_with_how_to_make_one(dllmx: Command) -> None:
    assert dllmx("run", *SMALL).status == 0
    result = dllmx("plan", f"trace={dllmx.only_run()}")
    assert result.status == 2
    assert "has no trace. Make one: dllmx run ... trace=true" in result.err
