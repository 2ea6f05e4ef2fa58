from __future__ import annotations

from typing import Any

import pytest

from dllmx.metrics.samples import SampleRecord, sample_from_json
from dllmx.metrics.summary import summarize


def record(**changes: Any) -> SampleRecord:
    """A hand-made sample: 8 tokens, 6 of them not EOS, in 4 forwards."""
    values: dict[str, Any] = {
        "id": "a", "prompt_ids": [7, 8], "output_ids": [1, 1, 1, 1, 1, 1, 2, 2], "text": "x",
        "answer": "x", "correct": True, "reference": "x", "nfe": 4,
        "counters": {"row_layers": 30, "row_layers_full": 80, "refresh_gaps": [3]},
        "seconds": 0.5, "batch": 0, "batch_size": 1, "tokens_all": 8, "tokens_non_eos": 6,
        "tokens_after_stop": 0, "eos_position": 6, "empty": False, "peak_memory_bytes": 100,
    }  # fmt: skip
    return SampleRecord(**(values | changes))


def test_metrics_of_two_hand_made_samples() -> None:
    second = record(
        id="b", correct=False, nfe=8, seconds=1.5, tokens_non_eos=2, tokens_after_stop=1,
        empty=True, peak_memory_bytes=300,
        counters={"row_layers": 50, "row_layers_full": 160, "refresh_gaps": []},
    )  # fmt: skip
    metrics = summarize([record(), second])
    assert (metrics.samples, metrics.correct, metrics.accuracy) == (2, 1, 0.5)
    assert (metrics.nfe, metrics.nfe_mean) == (12, 6)
    assert metrics.tpf == pytest.approx(8 / 12)
    assert metrics.tpf_all == pytest.approx(16 / 12)
    assert metrics.tps == pytest.approx(8 / 2.0)
    assert metrics.recompute_ratio == pytest.approx(80 / 240)
    assert metrics.peak_memory_bytes == 300
    assert metrics.empty_answers == 1
    assert metrics.tokens_after_stop == 1
    assert metrics.counters == {"row_layers": 80, "row_layers_full": 240}


def test_ratios_are_absent_where_nothing_was_decoded() -> None:
    metrics = summarize([])
    assert (metrics.accuracy, metrics.tpf, metrics.tps, metrics.recompute_ratio) == (None,) * 4


def test_a_sample_survives_its_line() -> None:
    import json

    sample = record(text='ü "quoted"\nsecond line', reference=[1, "two"])
    line = sample.to_line()
    assert line.count("\n") == 1
    assert sample_from_json(json.loads(line)) == sample


@pytest.mark.parametrize("entry", [3, {}, {"id": "a"}])
def test_what_is_no_sample_is_refused(entry: object) -> None:
    with pytest.raises(ValueError, match="not a sample"):
        sample_from_json(entry)
