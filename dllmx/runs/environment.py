"""What a run ran on: versions, device, memory, git state."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from dllmx.version import VERSION

RECORDED_PACKAGES = (
    "torch",
    "transformers",
    "hydra-core",
    "omegaconf",
    "triton",
    "rich",
    "wandb",
    "safetensors",
    "numpy",
    "pandas",
    "matplotlib",
)
PROCESS_STATUS = Path("/proc/self/status")
CLEAR_PEAK = Path("/proc/self/clear_refs")


def package_versions() -> dict[str, str | None]:
    """Installed version of each package that results may depend on; None: not installed."""
    return {name: _version(name) for name in RECORDED_PACKAGES}


def describe_machine(device: str) -> dict[str, Any]:
    """Python, platform, CPU, and for ``device`` "cuda" the GPU and its driver."""
    import torch

    return {
        "dllmx": VERSION,
        "packages": package_versions(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": device,
        "gpu": gpu_description() if device == "cuda" else None,
    }


def gpu_description() -> dict[str, Any]:
    """Name, memory in bytes, compute capability, CUDA and driver version of the first GPU."""
    import torch

    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "capability": f"{properties.major}.{properties.minor}",
        "cuda": torch.version.cuda,
        "driver": _output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
    }


def cpu_name() -> str:
    """The processor's name as the system gives it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def git_state() -> dict[str, Any] | None:
    """Commit and whether tracked files differ from it, of dllmx's own source tree.

    None where dllmx is not under version control, as when it is installed from a package.
    """
    source = Path(__file__).resolve()
    folder = str(source.parent)
    if _output_of("git", "-C", folder, "ls-files", "--error-unmatch", source.name) is None:
        return None
    commit = _output_of("git", "-C", folder, "rev-parse", "HEAD")
    changes = _output_of("git", "-C", folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "modified": bool(changes)}


@cache
def default_threads() -> int:
    """PyTorch's own number of CPU threads, before any run of this process set another."""
    import torch

    return torch.get_num_threads()


def use_threads(threads: int | None) -> None:
    """Let PyTorch compute with ``threads`` CPU threads; None: with its own number."""
    import torch

    own = default_threads()
    torch.set_num_threads(own if threads is None else threads)


def reset_peak_memory(device: str) -> None:
    """Start the peak anew, so that jobs of one process are measured apart (where possible)."""
    if device == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats()
        return
    try:
        CLEAR_PEAK.write_text("5", encoding="ascii")
    except OSError:  # other systems and some containers; the peak is then the process's own
        return


def peak_memory_bytes(device: str) -> int:
    """Peak memory: allocated on the GPU, or resident in this process."""
    if device == "cuda":
        import torch

        return torch.cuda.max_memory_allocated()
    if PROCESS_STATUS.exists():
        for line in PROCESS_STATUS.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _output_of(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
