from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import dllmx.conf
from dllmx.config.compose import compose, validate
from dllmx.config.schema import HardwareConfig
from dllmx.errors import ConfigError
from dllmx.kernels.choice import choose

NAMES = sorted(p.stem for p in (Path(dllmx.conf.__file__).parent / "hardware").glob("*.yaml"))
GPUS = ["a100-80gb", "gh200", "h100", "h200", "rtx4090"]


def profile(*overrides: str) -> HardwareConfig:
    return validate(compose(list(overrides))).hardware


def test_there_is_a_profile_for_every_machine_of_the_papers_and_more() -> None:
    assert sorted(["cpu", "cuda", *GPUS]) == NAMES


@pytest.mark.parametrize("name", GPUS)
def test_a_profile_of_one_gpu_states_its_peaks_and_where_they_are_from(name: str) -> None:
    found = profile(f"hardware={name}")
    assert (found.name, found.device, found.dtype) == (name, "cuda", "bfloat16")
    assert found.device_name
    assert found.memory_gb
    assert found.peak_tflops
    assert found.bandwidth_gbs
    text = (Path(dllmx.conf.__file__).parent / "hardware" / f"{name}.yaml").read_text()
    assert "# Source: NVIDIA" in text


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_a_profile_of_any_machine_states_no_peaks(name: str) -> None:
    found = profile(f"hardware={name}")
    assert found.device_name is found.memory_gb is found.peak_tflops is found.bandwidth_gbs is None


def test_auto_means_triton_on_a_gpu_and_torch_on_the_cpu() -> None:
    gpu, cpu = profile("hardware=cuda"), profile("hardware.kernels=auto")
    assert (gpu.kernels, chosen(gpu)) == ("auto", "triton")
    assert (cpu.kernels, chosen(cpu)) == ("auto", "torch")
    assert chosen(replace(gpu, kernels="torch")) == "torch"
    assert chosen(replace(cpu, kernels="triton")) == "triton"


def chosen(hardware: HardwareConfig) -> str:
    return choose(hardware.kernels, torch.device(hardware.device), hardware.attention).name


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["hardware.kernels=cuda"], "hardware.kernels=cuda .*auto, triton, torch"),
        (["hardware.attention=flash"], "hardware.attention=flash .*sdpa, triton"),
        (["hardware=h100", "hardware.peak_tflops=0"], "hardware.peak_tflops=0"),
        (["hardware=h100", "hardware.bandwidth_gbs=-1"], "hardware.bandwidth_gbs=-1"),
        (["hardware=h100", "hardware.memory_gb=nan"], "hardware.memory_gb=nan"),
        (["hardware=h100", "hardware.device=cpu"], "H100.*not for hardware.device=cpu"),
    ],
)
def test_bad_values_are_refused_in_words(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        profile(*overrides)
