"""Settings that hold for every test: one thread each, no network, no account."""

from __future__ import annotations

import os

# One thread a process: tests run side by side, and small matrices gain nothing from more.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["WANDB_MODE"] = "offline"
