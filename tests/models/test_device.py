from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from dllmx.config.compose import compose, validate
from dllmx.config.schema import HardwareConfig
from dllmx.errors import ConfigError
from dllmx.models.device import check_machine, fitting_profile, gpu_profiles

GPUS = [  # as PyTorch names them, with the bytes that it reports
    ("NVIDIA A100-SXM4-80GB", 85_094_825_984, "a100-80gb"),
    ("NVIDIA A100 80GB PCIe", 85_094_825_984, "a100-80gb"),
    ("NVIDIA A100-SXM4-40GB", 42_405_855_232, "cuda"),
    ("NVIDIA H100 80GB HBM3", 84_930_000_000, "h100"),
    ("NVIDIA H100 PCIe", 84_930_000_000, "cuda"),
    ("NVIDIA H200", 150_100_000_000, "h200"),
    ("NVIDIA GH200 480GB", 101_500_000_000, "gh200"),
    ("NVIDIA GH200 144G HBM3e", 150_900_000_000, "gh200"),
    ("NVIDIA GeForce RTX 4090", 25_400_000_000, "rtx4090"),
    ("NVIDIA GeForce RTX 4090 Laptop GPU", 17_100_000_000, "cuda"),
    ("NVIDIA L40S", 47_700_000_000, "cuda"),
]


def profile(name: str) -> HardwareConfig:
    return validate(compose([f"hardware={name}"])).hardware


def pretend(monkeypatch: pytest.MonkeyPatch, name: str, memory: int) -> None:
    found = SimpleNamespace(name=name, total_memory=memory)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: found)


@pytest.mark.parametrize(("gpu", "memory", "name"), GPUS)
def test_every_gpu_has_one_profile_that_fits(gpu: str, memory: int, name: str) -> None:
    assert fitting_profile(gpu, memory) == name


@pytest.mark.parametrize(("gpu", "memory", "name"), GPUS)
def test_a_profile_for_another_gpu_is_refused_with_the_one_that_fits(
    monkeypatch: pytest.MonkeyPatch, gpu: str, memory: int, name: str
) -> None:
    pretend(monkeypatch, gpu, memory)
    check_machine(profile(name))
    check_machine(profile("cuda"))
    check_machine(profile("cpu"))
    others = [p for p in gpu_profiles() if p.name not in (name, "cuda")]
    assert len(others) >= 4
    for other in others:
        with pytest.raises(ConfigError, match=f"hardware={other.name} .*Use hardware={name}$"):
            check_machine(other)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
@pytest.mark.parametrize("name", [p.name for p in gpu_profiles()])
def test_without_a_gpu_its_profiles_are_refused_with_the_one_for_the_cpu(name: str) -> None:
    with pytest.raises(ConfigError, match=f"hardware={name} needs a CUDA.*use hardware=cpu"):
        check_machine(profile(name))
    check_machine(profile("cpu"))
