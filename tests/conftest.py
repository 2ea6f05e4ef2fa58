"""Settings that hold for every test: one thread each, no network, no account.

Hypothesis draws the same examples every time, so that a change is judged by what it changed;
``HYPOTHESIS_PROFILE=explore pytest`` draws new ones, more of them.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# One thread a process: tests run side by side, and small matrices gain nothing from more.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Read when triton is first imported: kernels then run on CPU tensors.
os.environ["TRITON_INTERPRET"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["WANDB_MODE"] = "offline"

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=500, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.fixture(autouse=True)
def _no_debug_left_behind():
    """``--debug`` sets a variable of the process, which would show tracebacks in later tests."""
    yield
    os.environ.pop("DLLMX_DEBUG", None)
