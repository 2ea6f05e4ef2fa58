"""Hostile texts: nothing but plain arithmetic reaches the child, and the child is caged."""

import os
import time

import pytest

from dllmx.tasks import sandbox
from dllmx.tasks.sandbox import Program, Refused

GOOD = "def f ( x ) : return 2 * x + 3"


def program(source, cases=((1,), (2,))):
    return Program(source, "f", cases)


def test_a_plain_function_is_run_on_all_cases():
    assert sandbox.run([program(GOOD)])[0].values == (5, 7)


@pytest.mark.parametrize(
    "source",
    [
        "import os",
        "import os\ndef f(x): return x",
        "def f(x): return __import__('os').system('true')",
        "def f(x): return open('/etc/passwd')",
        "def f(x): return x.__class__",
        "def f(x): return x.real",
        "def f(x): return [x for x in (1,)]",
        "def f(x): return (lambda: x)()",
        "def f(x): return f(x)",
        "def f(x): return y",
        "def f(x): return __builtins__",
        "def f(x): return x ** 9 ** 9 ** 9",
        "def f(x): return x << 99999999",
        "def f(x): return 99999999999999999999 * x",
        "def f(x): return 'a' * x",
        "def f(x): return 1.5 * x",
        "def f(x): return 1j * x",
        "def f(x): return True",
        "def f(x): return x / 0",
        "def f(x): return x if x else 1",
        "def f(x): return (y := x)",
        "def f(x=print()): return x",
        "def f(x: print()): return x",
        "def f(x) -> print(): return x",
        "def f(*x): return x",
        "def f(**x): return x",
        "def f(*, x): return x",
        "def f(x, /): return x",
        "@print\ndef f(x): return x",
        "async def f(x): return x",
        "def f(x): yield x",
        "def f(x):\n while 1: pass",
        "def f(x): return",
        "def f(x): pass",
        "def f(x): return x; import os",
        "def f(x): return x\nf = 1",
        "def g(x): return x",
        "class f: pass",
        "f = 1",
        "def f(x): return \uff58",
        "def f(x): return x\x00",
        "def f(x): return " + "(" * 300 + "x" + ")" * 300,
        "def f(x): return " + "-" * 400 + "x",
        "def f(x): return " + "+".join("x" * 200),
        "def f(x): return x" + " " * 1000,
        "",
        "@@@",
    ],
)
def test_hostile_text_is_refused_before_any_process_starts(source, monkeypatch):
    monkeypatch.setattr(sandbox, "_run_child", lambda *_: pytest.fail("a process was started"))
    verdict = sandbox.run([program(source)])[0]
    assert verdict.values is None
    assert verdict.reason


def test_refusal_of_one_text_does_not_touch_its_neighbours():
    verdicts = sandbox.run([program(GOOD), program("import os"), program(GOOD)])
    assert [verdict.values for verdict in verdicts] == [(5, 7), None, (5, 7)]


def test_check_says_why():
    with pytest.raises(Refused, match="Call is not allowed"):
        sandbox.check("def f(x): return print(x)", "f")


def test_a_wrong_number_of_arguments_is_a_verdict_not_a_crash():
    assert sandbox.run([program(GOOD, ((1, 2),))])[0].reason == "TypeError"


def test_many_programs_take_one_child(monkeypatch):
    started = []
    talk = sandbox._talk
    monkeypatch.setattr(sandbox, "_talk", lambda *a: started.append(1) or talk(*a))
    verdicts = sandbox.run([program(GOOD)] * 300)
    assert len(started) == 1
    assert all(verdict.values == (5, 7) for verdict in verdicts)


# The second wall must hold on its own: what follows goes to the child past the first one.


def unchecked(source, monkeypatch, wall=5.0):
    monkeypatch.setattr(sandbox, "check", lambda *_: None)
    return sandbox.run([program(source), program(GOOD)], wall_seconds=wall)


def test_the_child_has_no_builtins_to_call(monkeypatch):
    for source in ("def f(x): return open('/etc/passwd')", "def f(x): return __import__('os')"):
        assert unchecked(source, monkeypatch)[0].reason in ("NameError", "ImportError")


def test_an_endless_loop_is_stopped_by_the_clock(monkeypatch):
    began = time.monotonic()
    verdicts = unchecked("def f(x):\n while 1: pass", monkeypatch, wall=1.0)
    assert time.monotonic() - began < 4
    assert [verdict.reason for verdict in verdicts] == ["the run was cut off"] * 2


def test_a_huge_result_is_stopped_by_the_limits(monkeypatch):
    assert unchecked("def f(x): return [0] * 10**8", monkeypatch)[0].reason == "MemoryError"
    assert unchecked("def f(x): return (1 << 10**8) * x", monkeypatch)[0].values is None


def test_finished_programs_keep_their_verdict_when_a_later_one_is_stopped(monkeypatch):
    monkeypatch.setattr(sandbox, "check", lambda *_: None)
    endless = program("def f(x):\n while 1: pass")
    verdicts = sandbox.run([program(GOOD), endless], wall_seconds=1.0)
    assert [verdict.values for verdict in verdicts] == [(5, 7), None]


FOUND = "[s for s in ().__class__.__base__.__subclasses__() if s.__name__ == '_ModuleLock'][0]"
BUILTINS = f"{FOUND}.__init__.__globals__['__builtins__']"
POSIX = f"{BUILTINS}['__import__']('posix')"


@pytest.mark.parametrize(
    ("expression", "error"),
    [
        (f"{POSIX}.fork()", "BlockingIOError"),
        (f"{POSIX}.open('/etc/passwd', 0)", "OSError"),
        (f"{BUILTINS}['__import__']('socket')", "OSError"),
        (f"{BUILTINS}['open']('mine', 'w')", "OSError"),
        (f"{BUILTINS}['__import__']('resource').setrlimit(7, (64, 64))", "ValueError"),
    ],
)
def test_even_code_that_breaks_out_of_python_meets_the_limits(expression, error, monkeypatch):
    assert unchecked(f"def f(x): return {expression}", monkeypatch)[0].reason == error


def test_the_child_sees_no_environment_and_an_empty_folder(monkeypatch):
    monkeypatch.setenv("SECRET", "1")
    # LC_CTYPE is set by the interpreter itself.
    source = f"def f(x): return [b'SECRET' in {POSIX}.environ, {POSIX}.getcwd().count('sandbox')]"
    monkeypatch.setattr(sandbox, "_read_line", lambda line: sandbox.Verdict(None, line.decode()))
    assert unchecked(source, monkeypatch)[0].reason == "[[false, 1], [false, 1]]"


def test_the_child_inherits_no_descriptor(monkeypatch, tmp_path):
    with (tmp_path / "held").open("w") as held:
        os.set_inheritable(held.fileno(), True)
        source = f"def f(x): return {POSIX}.fstat({held.fileno()})"
        assert unchecked(source, monkeypatch)[0].reason == "OSError"
