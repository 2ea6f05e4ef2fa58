"""Entry point of ``dllmx``: picks the command and turns errors into lines and exit statuses."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import sys
import traceback

from dllmx.errors import ConfigError, DllmxError
from dllmx.version import VERSION

COMMANDS = {
    "run": ("dllmx.cli.run", "decode a task with a policy, or sweep over several with -m"),
    "decode": ("dllmx.cli.decode", "decode the prompts of a JSONL file, steps included"),
    "watch": ("dllmx.cli.watch", "play a decode in the terminal, token by token"),
    "compare": ("dllmx.cli.compare", "hold two finished runs against each other"),
    "list": ("dllmx.cli.listing", "show models, policies, tasks and all other options"),
    "doctor": ("dllmx.cli.doctor", "say what this machine can run and what is missing"),
    "plan": ("dllmx.cli.plan", "predict the least time of a decode on a GPU, without weights"),
    "bench": ("dllmx.cli.bench", "measure the time that decoding costs besides the model"),
    "train-tiny": ("dllmx.cli.train_tiny", "train the bundled models again"),
}
"""Command -> (module with ``main(argv) -> exit status``, one line of help)."""

DEBUG = "DLLMX_DEBUG"
INTERRUPTED = 130


def main() -> None:
    """Run the command line given in ``sys.argv`` and leave with its exit status."""
    sys.exit(run_command_line(sys.argv[1:]))


def run_command_line(arguments: list[str]) -> int:
    """Run one command line; errors become one or two lines on stderr. Returns the exit status."""
    if "--debug" in arguments:
        os.environ[DEBUG] = "1"
        arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        return _dispatch(arguments)
    except DllmxError as error:
        return _report(str(error), error.exit_status)
    except KeyboardInterrupt:
        return _report("interrupted. The same command goes on from here.", INTERRUPTED, "")
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        return _report(f"{error.strerror or error}{where}. What was finished is kept.", 1)
    except Exception as error:  # noqa: BLE001  the last stop: a traceback is for --debug only
        message = f"{type(error).__name__}: {error}\nRun it again with --debug to see where."
        return _report(message, 1, "internal error: ")


def available_commands() -> dict[str, str]:
    """Command -> one line of help, of the commands that are installed."""
    return {
        name: summary
        for name, (module, summary) in COMMANDS.items()
        if importlib.util.find_spec(module) is not None
    }


def usage() -> str:
    """The text of ``dllmx --help``."""
    lines = [f"  {name:<12}{summary}" for name, summary in available_commands().items()]
    return "\n".join(
        [
            "Experiment runner for inference of masked diffusion language models.",
            "",
            "Usage: dllmx COMMAND [key=value ...]      dllmx COMMAND --help",
            "",
            *lines,
            "",
            "  --version   print the version",
            "  --debug     show a traceback with errors",
            "",
            "Start with: dllmx run",
        ]
    )


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        sys.stdout.write(usage() + "\n")
        return 0
    if arguments[0] in ("-V", "--version"):
        sys.stdout.write(f"dllmx {VERSION}\n")
        return 0
    if arguments[0] in ("-sc", "--shell-completion", "--shell_completion"):
        return _complete(arguments)
    name, rest = arguments[0], arguments[1:]
    known = available_commands()
    if name not in known:
        raise ConfigError(_unknown_command(name, list(known)))
    status = importlib.import_module(COMMANDS[name][0]).main(rest)
    return int(status)


def _unknown_command(name: str, known: list[str]) -> str:
    if "=" in name:
        return f"{name} came before a command. Did you mean: dllmx run {name}"
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"Did you mean {near[0]}?" if near else f"Commands: {', '.join(known)}."
    return f"{name} is not a command of dllmx. {hint}"


def _complete(arguments: list[str]) -> int:
    completion = importlib.import_module("dllmx.cli.completion")
    return int(completion.main(arguments))


def _report(message: str, status: int, prefix: str = "error: ") -> int:
    if os.environ.get(DEBUG) and sys.exc_info()[0] is not None:
        traceback.print_exc()
    sys.stderr.write(f"{prefix}{message}\n")
    return status


if __name__ == "__main__":
    main()
