"""Compiles every declared kernel for chosen GPUs, without one, and holds it to its budget.

``python -m dllmx.bench.compile_kernels [--arch 80 90 100] [--kernel FILE ...]`` prints one JSON and
ends with 1 when a kernel does not compile, spills, takes more registers than its file declares, or
more shared memory than a block of that GPU may have. It reads what the compiler's own tool reports
of the machine code. It must run where ``TRITON_INTERPRET`` is not set: interpreted kernels cannot
be compiled.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import pkgutil
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import dllmx.kernels
from dllmx.errors import ConfigError, DllmxError
from dllmx.kernels.compiled import Variant

ARCHITECTURES = (80, 90, 100)
SHARED_LIMIT = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
"""KiB of shared memory that one block may have, by compute capability without its dot (CUDA C++
Programming Guide, technical specifications)."""


@dataclass(frozen=True, slots=True)
class Task:
    """The variant at ``index`` of ``module.VARIANTS``, to be compiled for ``arch``."""

    module: str
    index: int
    arch: int

    @property
    def variant(self) -> Variant:
        """What is to be compiled; kernels cannot travel between processes, their places can."""
        found: Variant = import_module(self.module).VARIANTS[self.index]
        return found


@dataclass(frozen=True, slots=True)
class Compiled:
    """One variant for one architecture. ``registers`` of a thread; ``spilled``: bytes of its stack
    and local memory; ``shared``: bytes of a block; ``problems``: what is wrong, in words.
    """

    variant: str
    module: str
    arch: int
    registers: int | None
    budget: int
    spilled: int | None
    shared: int | None
    seconds: float
    problems: tuple[str, ...]


def find_tasks(
    modules: Sequence[str], architectures: Sequence[int], kernels: Sequence[str] = ()
) -> list[Task]:
    """Every variant of ``modules`` for every architecture; ``kernels``: these modules' names only.

    ConfigError where a name has no variants.
    """
    found = {name: len(getattr(import_module(name), "VARIANTS", ())) for name in modules}
    counts = {name.rpartition(".")[2]: (name, count) for name, count in found.items() if count}
    for kernel in kernels:
        if kernel not in counts:
            known = ", ".join(sorted(counts))
            raise ConfigError(f"{kernel} declares no kernels to compile. Those that do: {known}.")
    return [
        Task(module, index, arch)
        for name, (module, count) in sorted(counts.items())
        if not kernels or name in kernels
        for index in range(count)
        for arch in architectures
    ]


def kernel_modules() -> list[str]:
    """The modules of ``dllmx.kernels``."""
    package = dllmx.kernels
    return [f"{package.__name__}.{found.name}" for found in pkgutil.iter_modules(package.__path__)]


def compile_task(task: Task) -> Compiled:
    """Compile one variant. Whatever the compiler raises becomes a problem of its report."""
    variant, start = task.variant, time.monotonic()
    registers, spilled, shared = None, None, None
    try:
        cubin, shared = _compiled(variant, task.arch)
        registers, spilled = _usage(cubin)
        problems = _problems(variant, task.arch, registers, spilled, shared)
    except Exception as error:  # noqa: BLE001  a compiler can fail in any way
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        problems = (f"{type(error).__name__}: {' '.join(lines)[:500]}",)
    seconds = round(time.monotonic() - start, 2)
    return Compiled(
        variant.name, task.module, task.arch, registers, variant.registers, spilled, shared,
        seconds, problems,
    )  # fmt: skip


def compile_all(tasks: Sequence[Task], jobs: int) -> list[Compiled]:
    """Compile all tasks, in ``jobs`` processes: a compiler that crashes takes only its own along.

    What was under way in the others then is compiled again, each in a process of its own.
    """
    with _pool(jobs) as pool:
        futures = [pool.submit(compile_task, task) for task in tasks]
        found = [_result(future) for future in futures]
    return [one or _compile_alone(task) for task, one in zip(tasks, found, strict=True)]


def _compile_alone(task: Task) -> Compiled:
    with _pool(1) as pool:
        found = _result(pool.submit(compile_task, task))
    crash = ("the compiler crashed",)
    name, budget = task.variant.name, task.variant.registers
    return found or Compiled(name, task.module, task.arch, None, budget, None, None, 0.0, crash)


def _pool(jobs: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"))


def _result(future: Future[Compiled]) -> Compiled | None:
    try:
        return future.result()
    except BrokenProcessPool:
        return None


def _compiled(variant: Variant, arch: int) -> tuple[bytes, int]:
    """Machine code, and bytes of shared memory of a block."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel: Any = variant.kernel
    names = list(kernel.arg_names)
    if set(names) != set(variant.signature):
        wrong = ", ".join(sorted(set(names) ^ set(variant.signature)))
        raise ConfigError(f"the signature and the kernel's arguments differ in: {wrong}")
    signature = {name: variant.signature[name] for name in names}
    aligned = [
        place
        for place, name in enumerate(names)
        if signature[name].startswith("*") or name in variant.aligned
    ]
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs=dict(variant.constants),
        attrs={(place,): [["tt.divisibility", 16]] for place in aligned},
    )
    options = {"num_warps": variant.warps, "num_stages": variant.stages}
    made = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    return made.asm["cubin"], int(made.metadata.shared)


def _usage(cubin: bytes) -> tuple[int, int]:
    """Registers of a thread, and the bytes that it keeps in memory because they are not enough.

    Spilled registers lie on the stack. What the tool calls LOCAL stays 0 however many spill.
    """
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        done = subprocess.run(
            [str(tool), "-res-usage", str(path)], capture_output=True, text=True, check=True
        )
    found = {
        key: [int(number) for number in re.findall(rf"\b{key}:(\d+)", done.stdout)]
        for key in ("REG", "STACK", "LOCAL")
    }
    if not all(found.values()):
        raise ValueError(f"no registers in the report of {tool.name}: {done.stdout}")
    return max(found["REG"]), max(found["STACK"]) + max(found["LOCAL"])


def _problems(
    variant: Variant, arch: int, registers: int, spilled: int, shared: int
) -> tuple[str, ...]:
    limit = 1024 * SHARED_LIMIT[arch]
    checks = (
        (spilled > 0, f"{spilled} bytes a thread are spilled"),
        (registers > variant.registers, f"{registers} registers, declared {variant.registers}"),
        (shared > limit, f"{shared} bytes of shared memory, a block may have {limit}"),
    )
    return tuple(text for is_wrong, text in checks if is_wrong)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m dllmx.bench.compile_kernels",
        description="Compile every declared Triton kernel without a GPU; print one JSON.",
    )
    parser.add_argument(
        "--arch", type=int, nargs="+", default=ARCHITECTURES, choices=sorted(SHARED_LIMIT),
        help="compute capabilities without the dot (default: 80 90 100)",
    )  # fmt: skip
    parser.add_argument("--kernel", nargs="+", default=(), help="names of files in kernels/")
    parser.add_argument("--module", nargs="+", help="other modules with VARIANTS, not kernels/")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    return parser.parse_args(argv)


def _check_environment() -> None:
    if os.environ.get("TRITON_INTERPRET", "0").lower() not in ("", "0", "false", "off", "no"):
        raise ConfigError(
            "TRITON_INTERPRET is set, and interpreted kernels cannot be compiled. Run: "
            "env -u TRITON_INTERPRET python -m dllmx.bench.compile_kernels"
        )
    from dllmx.kernels.language import HAS_TRITON

    if not HAS_TRITON:
        raise ConfigError("triton is not installed; it compiles the kernels: pip install triton")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns its exit status."""
    chosen = _arguments(argv)
    try:
        _check_environment()
        tasks = find_tasks(chosen.module or kernel_modules(), chosen.arch, chosen.kernel)
    except DllmxError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_status
    compiled = compile_all(tasks, max(1, min(chosen.jobs, len(tasks))))
    import triton

    wrong = [one for one in compiled if one.problems]
    report = {
        "triton": triton.__version__,
        "architectures": list(chosen.arch),
        "wrong": len(wrong),
        "compiled": [asdict(one) for one in compiled],
    }
    sys.stdout.write(json.dumps(report, indent=1) + "\n")
    for one in wrong:
        sys.stderr.write(f"{one.variant}, sm_{one.arch}: {'; '.join(one.problems)}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
