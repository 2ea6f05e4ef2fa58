"""Tokens a second as the three papers print them, beside which a plan is shown."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from importlib.resources import files

GPUS = {"a100-80gb": "A100 80GB", "gh200": "GH200"}
"""Hardware profile -> the GPU's name in ``published.csv``."""

SAME_METHOD = {"polestar-release": "polestar"}
"""Preset -> the one that stands for the same method in ``published.csv``."""


@dataclass(frozen=True, slots=True)
class Published:
    """One printed figure: ``place`` in ``paper``, ``tpf`` None where it is not stated."""

    paper: str
    place: str
    benchmark: str
    gpu: str
    tpf: float | None
    tps: float


def published_figures(model: str, policy: str, gen_length: int) -> list[Published]:
    """The figures for options ``model`` and ``policy`` at this response length."""
    wanted = (model, SAME_METHOD.get(policy, policy), str(gen_length))
    text = files("dllmx.plan").joinpath("published.csv").read_text(encoding="utf-8")
    return [
        Published(
            row["paper"],
            row["place"],
            row["benchmark"],
            row["gpu"],
            float(row["tpf"]) if row["tpf"] else None,
            float(row["tps"]),
        )
        for row in csv.DictReader(text.splitlines())
        if (row["model"], row["policy"], row["gen_length"]) == wanted
    ]
