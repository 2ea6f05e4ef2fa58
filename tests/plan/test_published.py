from __future__ import annotations

import csv
from importlib.resources import files

from dllmx.cli.listing import options_of
from dllmx.plan.published import GPUS, Published, published_figures


def test_every_figure_is_of_a_model_and_a_policy_that_there_are() -> None:
    text = files("dllmx.plan").joinpath("published.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    assert {row["model"] for row in rows} <= {option.name for option in options_of("model")}
    assert {row["policy"] for row in rows} <= {option.name for option in options_of("policy")}
    assert set(GPUS) <= {option.name for option in options_of("hardware")}
    assert set(GPUS.values()) <= {row["gpu"] for row in rows}
    keys = [tuple(row.values())[:7] for row in rows]
    assert len(set(keys)) == len(keys)


def test_figures_are_found_by_model_policy_and_length() -> None:
    found = published_figures("llada", "polestar", 256)
    assert Published("Polestar", "Table 1", "GSM8K", "A100 80GB", 3.67, 87.57) in found
    assert Published("Polestar", "Table 10 (TPF: Table 1)", "GSM8K", "GH200", 3.67, 151.31) in found
    assert published_figures("llada", "polestar-release", 256) == found
    assert published_figures("llada", "polestar", 300) == []
    entropycache = published_figures("llada", "entropycache", 256)
    assert Published("EntropyCache", "Table 9", "MBPP", "not stated", None, 64.91) in entropycache
