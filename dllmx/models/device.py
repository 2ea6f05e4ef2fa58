"""Whether a hardware profile is for this machine, and which one is."""

from __future__ import annotations

from importlib.resources import files

import torch
import yaml

from dllmx.config.schema import HardwareConfig
from dllmx.errors import ConfigError

SHARE_OF_MEMORY = 0.9
"""A driver keeps some of a GPU's memory; one with less than this share is another GPU."""


def check_machine(hardware: HardwareConfig) -> None:
    """Raise ConfigError where the profile is for another machine; it names the one for this."""
    if hardware.device == "cpu":
        return
    if not torch.cuda.is_available():
        raise ConfigError(
            f"hardware={hardware.name} needs a CUDA device and PyTorch sees none; use hardware=cpu"
        )
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    if not fits(hardware, found.name, found.total_memory):
        wanted = [hardware.device_name or "GPU"]
        if hardware.memory_gb is not None:
            wanted.append(f"with {hardware.memory_gb:g} GB")
        raise ConfigError(
            f"hardware={hardware.name} is for an {' '.join(wanted)}; this machine has an "
            f"{found.name} with {found.total_memory / 1e9:.0f} GB. "
            f"Use hardware={fitting_profile(found.name, found.total_memory)}"
        )


def fits(hardware: HardwareConfig, gpu: str, memory: int) -> bool:
    """Whether the profile is for a GPU called ``gpu`` with ``memory`` bytes."""
    least = SHARE_OF_MEMORY * 1e9 * (hardware.memory_gb or 0.0)
    return (hardware.device_name or "") in gpu and memory >= least


def fitting_profile(gpu: str, memory: int) -> str:
    """The profile for that GPU; ``cuda`` where it has none of its own."""
    named = [p for p in gpu_profiles() if p.device_name is not None and fits(p, gpu, memory)]
    return named[0].name if named else "cuda"


def gpu_profiles() -> list[HardwareConfig]:
    """The profiles in ``conf/hardware`` that are for GPUs."""
    folder = files("dllmx.conf").joinpath("hardware")
    texts = [
        entry.read_text(encoding="utf-8")
        for entry in folder.iterdir()
        if entry.name.endswith(".yaml")
    ]
    profiles = [HardwareConfig(**yaml.safe_load(text)) for text in texts]
    return sorted((p for p in profiles if p.device == "cuda"), key=lambda profile: profile.name)
