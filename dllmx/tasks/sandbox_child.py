"""The child process of the sandbox: limits itself, then runs the functions it is sent.

Started as a script by ``sandbox.py`` with the limits as arguments; never imported by the package.
It limits itself before it reads the first function, and no function can lift a hard limit again.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys

NOBODY = 65534


def limit(cpu_seconds: int, memory_bytes: int, output_bytes: int) -> None:
    """Set hard limits on this process: no new processes, few files, no core dump."""
    for kind, most in (
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_FSIZE, output_bytes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 3),
        (resource.RLIMIT_NPROC, 0),
    ):
        resource.setrlimit(kind, (most, most))


def drop_privileges() -> None:
    """Stop being the superuser, whom the limit on processes would not bind.

    Where a container maps no other user this is refused, and the first wall stands alone.
    """
    if os.geteuid() == 0:
        with contextlib.suppress(OSError):
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)


def evaluate(source: str, name: str, cases: list[list[int]]) -> list[int] | str:
    """The values of all cases, or the name of the exception that stopped the function."""
    scope: dict[str, object] = {"__builtins__": {}}
    try:
        exec(compile(source, "answer", "exec"), scope)
        function = scope[name]
        return [function(*case) for case in cases]  # type: ignore[operator]
    except Exception as error:  # noqa: BLE001 (whatever a function raises is its verdict)
        return type(error).__name__


def main() -> None:
    """Read all functions, then write one line of JSON for each."""
    drop_privileges()
    limit(*(int(argument) for argument in sys.argv[1:4]))
    for source, name, cases in json.load(sys.stdin):
        sys.stdout.write(json.dumps(evaluate(source, name, cases)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
