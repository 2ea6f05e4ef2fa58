"""Which kernels a name means, and that none replaces another silently."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from dllmx.errors import ConfigError
from dllmx.kernels import choice, language
from dllmx.kernels.choice import TORCH, TRITON, choose, interpreted

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
TRIED = """
import os
from dllmx.kernels.choice import choose
import torch
os.environ["TRITON_INTERPRET"] = "1"
choose("triton", torch.device("cpu"))
"""


def test_auto_means_triton_on_a_gpu_and_torch_on_the_cpu() -> None:
    assert choose("auto", CUDA).name == choose("triton", CUDA).name == "triton"
    assert choose("auto", CUDA, "triton") is choose("triton", CUDA, "triton") is TRITON
    assert choose("auto", CPU) is choose("torch", CPU) is choose("torch", CUDA) is TORCH


def test_attention_is_chosen_apart() -> None:
    own = choose("torch", CPU, "triton")
    assert own == replace(TORCH, row_attention=TRITON.row_attention)
    mixed = choose("triton", CPU, "sdpa")
    assert replace(mixed, row_attention=TRITON.row_attention) == TRITON
    q, keys = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 5, 8)
    assert torch.equal(
        mixed.row_attention(q, keys, keys).mixed, TORCH.row_attention(q, keys, keys).mixed
    )
    read = ("log_sum_exp", "head_mean")
    for found, expected in zip(
        mixed.row_attention(q, keys, keys, None, read),
        TRITON.row_attention(q, keys, keys, None, read),
        strict=True,
    ):
        assert (found is None and expected is None) or torch.equal(found, expected)


def test_triton_runs_on_the_cpu_in_its_interpreter() -> None:
    assert interpreted()
    assert choose("triton", CPU, "triton") is TRITON


def test_compiled_kernels_are_refused_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "interpreted", lambda: False)
    with pytest.raises(ConfigError, match=r"hardware\.kernels=torch.*TRITON_INTERPRET=1"):
        choose("triton", CPU)
    with pytest.raises(ConfigError, match=r"hardware\.attention=triton .*hardware\.attention=sdpa"):
        choose("torch", CPU, "triton")
    assert choose("auto", CPU) is TORCH
    assert choose("triton", CUDA, "triton") is TRITON


def test_asking_for_the_interpreter_after_the_import_is_too_late() -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    tried = subprocess.run(
        [sys.executable, "-c", TRIED], env=environment, capture_output=True, text=True, check=False
    )
    assert tried.returncode == 1
    assert "dllmx.errors.ConfigError: hardware.kernels=triton runs on a GPU" in tried.stderr


@pytest.mark.parametrize(("name", "device"), [("triton", CPU), ("triton", CUDA), ("auto", CUDA)])
def test_without_triton_nothing_takes_its_place(
    monkeypatch: pytest.MonkeyPatch, name: str, device: torch.device
) -> None:
    monkeypatch.setattr(language, "HAS_TRITON", False)
    with pytest.raises(ConfigError, match=r"pip install triton, or hardware\.kernels=torch"):
        choose(name, device)
    with pytest.raises(ConfigError, match=r"triton, or hardware\.attention=sdpa"):
        choose("torch", device, "triton")
    assert choose("torch", device) is TORCH


def test_other_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="hardware.kernels=cutlass does not exist"):
        choose("cutlass", CPU)
