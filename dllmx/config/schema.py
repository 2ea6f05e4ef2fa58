"""The typed configuration of a run, as every other room receives it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dllmx.config.ranges import check_at_least, check_between, check_choice
from dllmx.errors import ConfigError


@dataclass(frozen=True)
class ModelConfig:
    """Which model, from where, and how its prompts are written (``conf/model``)."""

    name: str
    family: str
    checkpoint: str
    chat: bool
    path: str | None = None
    weights: str = "pretrained"
    layers: int | None = None
    tokenizer: str = "auto"
    shape: dict[str, Any] | None = None
    mask_id: int | None = None
    eos_id: int | None = None
    eot_id: int | None = None
    pad_id: int | None = None

    def __post_init__(self) -> None:
        check_choice("model.family", self.family, ("llada", "dream"))
        check_choice("model.weights", self.weights, ("pretrained", "random"))
        check_at_least("model.layers", self.layers, 1)
        for key in ("mask_id", "eos_id", "eot_id", "pad_id"):
            check_at_least(f"model.{key}", getattr(self, key), 0)


@dataclass(frozen=True)
class HardwareConfig:
    """Where and in which precision the model runs (``conf/hardware``).

    ``device_name``: text in the name of the GPU that the profile is for, ``memory_gb``: its memory;
    ``peak_tflops``: its dense matrix products in 16-bit numbers, ``bandwidth_gbs``: its memory's.
    None: any, or unknown.
    """

    name: str
    device: str
    dtype: str
    kernels: str
    threads: int | None = None
    attention: str = "sdpa"
    device_name: str | None = None
    memory_gb: float | None = None
    peak_tflops: float | None = None
    bandwidth_gbs: float | None = None

    def __post_init__(self) -> None:
        check_choice("hardware.device", self.device, ("cpu", "cuda"))
        check_choice("hardware.dtype", self.dtype, ("float32", "bfloat16", "float16"))
        check_choice("hardware.kernels", self.kernels, ("auto", "triton", "torch"))
        check_choice("hardware.attention", self.attention, ("sdpa", "triton"))
        check_at_least("hardware.threads", self.threads, 1)
        for key in ("memory_gb", "peak_tflops", "bandwidth_gbs"):
            check_at_least(f"hardware.{key}", getattr(self, key), LEAST_RATE)
        if self.device == "cpu" and self.device_name is not None:
            raise ConfigError(
                f"hardware={self.name} is for a GPU named {self.device_name}, not for "
                "hardware.device=cpu. Use hardware=cpu."
            )


LEAST_RATE = 1e-3
"""Smallest memory, peak and bandwidth of a profile: above zero, since times are divided by them."""

LARGEST = 1000.0
"""Largest temperature and guidance scale; beyond it logits lose their precision."""


@dataclass(frozen=True)
class SamplingConfig:
    """What every sampler has: lengths, how a token is drawn, guidance, end-of-text handling."""

    name: str
    gen_length: int
    steps: int | None = None
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    guidance: float = 0.0
    confidence_from: str = "model"
    eos: str = "none"
    suppress_eos: str = "none"

    def __post_init__(self) -> None:
        check_at_least("sampler.gen_length", self.gen_length, 1)
        check_at_least("sampler.steps", self.steps, 1)
        check_between("sampler.temperature", self.temperature, 0.0, LARGEST)
        check_between("sampler.top_p", self.top_p, 0.0, 1.0)
        check_at_least("sampler.top_k", self.top_k, 1)
        check_between("sampler.guidance", self.guidance, 0.0, LARGEST)
        check_choice("sampler.confidence_from", self.confidence_from, ("model", "sampled"))
        check_choice("sampler.eos", self.eos, ("none", "fill", "stop"))
        check_choice("sampler.suppress_eos", self.suppress_eos, ("none", "logits", "confidence"))
        if self.steps is not None and self.steps > self.gen_length:
            raise ConfigError(
                f"sampler.steps={self.steps} is more than sampler.gen_length={self.gen_length}: "
                "some steps would commit nothing. Use at most one step a token."
            )


@dataclass(frozen=True)
class PolicyConfig:
    """The name of the preset that chose the parts (``conf/policy``)."""

    name: str


@dataclass(frozen=True)
class LoggerConfig:
    """Where results are mirrored besides the local files (``conf/logger``)."""

    name: str
    project: str = "dllmx"
    entity: str | None = None

    def __post_init__(self) -> None:
        check_choice("logger.name", self.name, ("auto", "wandb", "none"))


@dataclass(frozen=True)
class RunConfig:
    """One run, fully resolved. The parts' configs are the ``Config`` of their own modules."""

    model: ModelConfig
    task: Any
    hardware: HardwareConfig
    sampler: Any
    cache: Any
    commit: Any
    policy: PolicyConfig
    logger: LoggerConfig
    seed: int = 0
    batch_size: int = 1
    output: str = "outputs"
    trace: bool = False
    overwrite: bool = False

    def __post_init__(self) -> None:
        check_at_least("seed", self.seed, 0)
        check_at_least("batch_size", self.batch_size, 1)
        if not self.output.strip():
            raise ConfigError("output= is empty. Name a folder, such as output=outputs.")
