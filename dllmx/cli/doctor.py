"""``dllmx doctor``: what this machine can run, what is missing and the command that fixes it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from dllmx.cli.arguments import wants_help
from dllmx.cli.console import results
from dllmx.cli.listing import options_of
from dllmx.cli.tables import text_table
from dllmx.cli.text import memory
from dllmx.errors import ConfigError
from dllmx.version import VERSION

HELP = """\
Say what this machine can run, what is missing and what to type to get it.

Usage: dllmx doctor [output=FOLDER]

Exit status 1 when something is missing without which nothing runs.
"""

OLDEST, NEWEST = (3, 10), (3, 13)
NEEDED = ("torch", "transformers", "hydra", "omegaconf", "rich", "safetensors", "numpy")
DISTRIBUTION = {"hydra": "hydra-core"}
INSTALL = "pip install -e . (in the folder of dllmx), or make setup"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. ``state``: ok, absent (optional) or broken (nothing runs)."""

    what: str
    state: str
    detail: str
    fix: str = ""


def main(argv: list[str]) -> int:
    """Run the command; returns its exit status."""
    if wants_help(argv, HELP):
        return 0
    if any(not argument.startswith("output=") for argument in argv):
        raise ConfigError(f"doctor takes only output=FOLDER, not {' '.join(argv)}")
    output = next((a.partition("=")[2] for a in argv), "outputs")
    findings = list(examine(Path(output)))
    rows = [[f.what, f.state, f.detail, f.fix] for f in findings]
    console = results()
    console.print(text_table(["", "state", "found", "to fix it"], rows))
    broken = [finding.what for finding in findings if finding.state == "broken"]
    verdict = f"Broken: {', '.join(broken)}." if broken else "dllmx run works on this machine."
    console.print(verdict, markup=False)
    return 1 if broken else 0


def examine(output: Path) -> Iterator[Finding]:
    """Look at everything that decides what can run."""
    yield _python()
    yield from _packages()
    if all(find_spec(name) for name in NEEDED):
        yield _processor()
        yield _gpu()
        yield from _checkpoints()
    yield _triton()
    yield _wandb()
    yield _folder(output)
    yield _git()


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if OLDEST <= sys.version_info[:2] <= NEWEST:
        return Finding("python", "ok", f"{version}, dllmx {VERSION}")
    return Finding("python", "broken", version, "Python 3.10 to 3.13")


def _packages() -> Iterator[Finding]:
    from dllmx.runs.environment import package_versions

    versions = package_versions()
    for module in NEEDED:
        name = DISTRIBUTION.get(module, module)
        if find_spec(module) is None:
            yield Finding(name, "broken", "not installed", INSTALL)
        else:
            yield Finding(name, "ok", versions.get(name) or "installed")


def _processor() -> Finding:
    import torch

    from dllmx.runs.environment import cpu_name

    threads = torch.get_num_threads()
    detail = f"{cpu_name()}, {os.cpu_count()} cores, PyTorch uses {threads} threads"
    return Finding("hardware=cpu", "ok", detail, "hardware.threads=N sets the threads")


def _gpu() -> Finding:
    import torch

    if not torch.cuda.is_available():
        fix = "a CUDA build of PyTorch, see its own install page"
        if torch.version.cuda is not None:
            fix = "a GPU and its driver"
        return Finding("hardware=cuda", "absent", "PyTorch sees no CUDA device", fix)
    from dllmx.runs.environment import gpu_description

    gpu = gpu_description()
    detail = f"{gpu['name']}, {memory(gpu['memory_bytes'])}, CUDA {gpu['cuda']}"
    return Finding("hardware=cuda", "ok", f"{detail}, driver {gpu['driver']}")


def _triton() -> Finding:
    if find_spec("triton") is None:
        return Finding("triton", "absent", "not installed; plain PyTorch is used", "Linux only")
    from dllmx.runs.environment import package_versions

    return Finding("triton", "ok", package_versions()["triton"] or "installed")


def _checkpoints() -> Iterator[Finding]:
    import yaml

    from dllmx.config.compose import typed
    from dllmx.config.schema import ModelConfig
    from dllmx.models.resolve import BUNDLED_PREFIX, find_checkpoint

    for option in options_of("model"):
        model: ModelConfig = typed(ModelConfig, yaml.safe_load(option.text), "model")
        what = f"model={option.name}"
        if model.weights == "random":
            yield Finding(what, "ok", "random weights; it needs no checkpoint")
            continue
        folder = find_checkpoint(model)
        if folder is not None:
            yield Finding(what, "ok", str(folder))
        elif model.checkpoint.startswith(BUNDLED_PREFIX):
            yield Finding(what, "broken", "the bundled weights are not there", "dllmx train-tiny")
        else:
            fix = f"hf download {model.checkpoint}, or model.path=FOLDER"
            yield Finding(what, "absent", f"{model.checkpoint} is not on this machine", fix)


def _wandb() -> Finding:
    from dllmx.runs.mirror import logged_in

    if find_spec("wandb") is None:
        return Finding("wandb", "absent", "not installed; local files only", "pip install wandb")
    if logged_in():
        return Finding("wandb", "ok", "logged in; logger=auto mirrors runs online")
    return Finding("wandb", "absent", "not logged in; local files only", "wandb login")


def _folder(output: Path) -> Finding:
    from dllmx.runs.files import make_writable_folder

    what = f"output={output}"
    try:
        make_writable_folder(output, "output")
    except ConfigError:
        return Finding(what, "broken", "cannot be written", "output=FOLDER")
    free = shutil.disk_usage(output).free
    return Finding(what, "ok", f"can be written, {memory(free)} free")


def _git() -> Finding:
    from dllmx.runs.environment import git_state

    state = git_state()
    if state is None:
        return Finding("git", "absent", "the source is not under git; runs record no commit")
    changed = ", with changes" if state["modified"] else ""
    return Finding("git", "ok", f"{state['commit'][:12]}{changed}")
