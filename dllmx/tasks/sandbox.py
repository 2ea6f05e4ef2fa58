"""Running one-line functions that a model wrote, without trusting a character of them.

Two walls. First, the text must parse to one function of plain integer arithmetic: nothing but its
own parameters, small integer literals and + - * are let through, so that there is no name, call,
attribute, import or power to misuse. Second, what passes is run in a child interpreter: isolated,
without environment or site packages, in an empty folder, with limits on time, memory, files and
processes, and with a cap on what is read back. The child is killed with its process group.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LONGEST_SOURCE = 500
LARGEST_LITERAL = 10**6
MOST_NODES = 120
WALL_SECONDS = 10.0
CPU_SECONDS = 5
MEMORY_BYTES = 256 * 2**20
OUTPUT_BYTES = 4 * 2**20
OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.USub)
CHILD = Path(__file__).with_name("sandbox_child.py")


@dataclass(frozen=True, slots=True)
class Program:
    """Source of one function, its expected name, and the arguments to call it with."""

    source: str
    name: str
    cases: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The values of all cases, or None and the reason why there are none."""

    values: tuple[int, ...] | None
    reason: str = ""


class Refused(Exception):
    """The text is not a function of plain arithmetic."""


def run(programs: Sequence[Program], wall_seconds: float = WALL_SECONDS) -> list[Verdict]:
    """A verdict for each program; those that are let through are run in one child process."""
    reasons = [_reason_to_refuse(program) for program in programs]
    admitted = [p for p, reason in zip(programs, reasons, strict=True) if reason is None]
    outcomes = iter(_run_child(admitted, wall_seconds) if admitted else [])
    return [next(outcomes) if reason is None else Verdict(None, reason) for reason in reasons]


def _reason_to_refuse(program: Program) -> str | None:
    try:
        check(program.source, program.name)
    except Refused as refusal:
        return str(refusal)
    return None


def check(source: str, name: str) -> None:
    """Raise Refused unless ``source`` is one function ``name`` of plain integer arithmetic."""
    if len(source) > LONGEST_SOURCE or not source.isascii():
        raise Refused("too long or not ASCII")
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise Refused("does not parse") from error
    function = _only_function(tree, name)
    parameters = _plain_parameters(function)
    _check_expression(_returned(function), parameters)


def _only_function(tree: ast.Module, name: str) -> ast.FunctionDef:
    if len(tree.body) != 1 or not isinstance(tree.body[0], ast.FunctionDef):
        raise Refused("not a single function")
    function = tree.body[0]
    if function.name != name:
        raise Refused(f"the function is not called {name}")
    if function.decorator_list or function.returns or getattr(function, "type_params", None):
        raise Refused("more than a plain function")
    return function


def _plain_parameters(function: ast.FunctionDef) -> frozenset[str]:
    arguments = function.args
    extras = (arguments.vararg, arguments.kwarg, *arguments.kwonlyargs, *arguments.posonlyargs)
    if any(extras) or arguments.defaults or any(a.annotation for a in arguments.args):
        raise Refused("parameters must be plain names")
    names = [argument.arg for argument in arguments.args]
    if any(name.startswith("_") for name in names):
        raise Refused("parameters must be plain names")
    return frozenset(names)


def _returned(function: ast.FunctionDef) -> ast.expr:
    statement = function.body[0]
    if len(function.body) != 1 or not isinstance(statement, ast.Return) or not statement.value:
        raise Refused("the body is not a single return of a value")
    return statement.value


def _check_expression(expression: ast.expr, parameters: frozenset[str]) -> None:
    nodes = list(ast.walk(expression))
    if len(nodes) > MOST_NODES:
        raise Refused("too long an expression")
    for node in nodes:
        if not _allowed(node, parameters):
            raise Refused(f"{type(node).__name__} is not allowed")


def _allowed(node: ast.AST, parameters: frozenset[str]) -> bool:
    if isinstance(node, ast.Constant):
        return type(node.value) is int and abs(node.value) <= LARGEST_LITERAL
    if isinstance(node, ast.Name):
        return node.id in parameters
    return isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Load, *OPERATORS))


def _run_child(programs: Sequence[Program], wall_seconds: float) -> list[Verdict]:
    tasks = [[p.source, p.name, [list(case) for case in p.cases]] for p in programs]
    with tempfile.TemporaryDirectory(prefix="dllmx-sandbox-") as folder:
        output = _talk(json.dumps(tasks).encode(), folder, wall_seconds)
    lines = output.splitlines()
    return [
        _read_line(lines[number]) if number < len(lines) else Verdict(None, "the run was cut off")
        for number in range(len(programs))
    ]


def _talk(message: bytes, folder: str, wall_seconds: float) -> bytes:
    """Send ``message`` to a child in ``folder``; what it wrote, whole lines only."""
    with tempfile.TemporaryFile() as sent, tempfile.TemporaryFile() as received:
        sent.write(message)
        sent.seek(0)
        command = [sys.executable, "-I", "-S", "-B", str(CHILD), *_limits()]
        child = subprocess.Popen(
            command, stdin=sent, stdout=received, stderr=subprocess.DEVNULL, cwd=folder, env={},
            close_fds=True, start_new_session=True,
        )  # fmt: skip
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(wall_seconds)
        finally:
            _kill_group(child)
        received.seek(0)
        return received.read(OUTPUT_BYTES).rpartition(b"\n")[0]


def _limits() -> list[str]:
    return [str(CPU_SECONDS), str(MEMORY_BYTES), str(OUTPUT_BYTES)]


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _read_line(line: bytes) -> Verdict:
    try:
        answer = json.loads(line)
    except ValueError:
        return Verdict(None, "unreadable result")
    if isinstance(answer, list) and all(type(value) is int for value in answer):
        return Verdict(tuple(answer))
    return Verdict(None, str(answer)[:80])
