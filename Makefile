# make setup   install into .venv (the other targets do it themselves where it has not been done)
# make run     the default experiment: three policies on a bundled model and task, one table
# make test    the tests
# make lint    style and types        make format   rewrite the code in that style
# make bench   what each policy costs besides its forwards: one table, under 6 minutes on one core
# make gpu-check   on a CUDA machine, 8 minutes: kernels, tokens, speed, memory; one JSON in OUT
#
# On Linux the package index may hold only PyTorch's CUDA build, which is large. For another build
# look up its index on PyTorch's own install page and pass it on:
#   make setup TORCH_INDEX=URL
# PIP_INSTALL_ARGS goes to every pip install, for instance PIP_INSTALL_ARGS=--no-index.

PYTHON ?= python3
WORKERS ?= auto
LIMIT ?= 100
TORCH_INDEX ?=
OUT ?= outputs/gpu-check
PIP_INSTALL_ARGS ?=

BIN := .venv/bin
STAMP := .venv/.installed
INSTALL := $(BIN)/python -m pip install -c constraints.txt $(PIP_INSTALL_ARGS)
TORCH_ARGS := $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))

.PHONY: help setup run test lint format bench gpu-check

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | sed '/^$$/q'

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	@command -v nvidia-smi >/dev/null || ! $(INSTALL) $(TORCH_ARGS) --dry-run --quiet --no-deps \
	  --ignore-installed --report - torch 2>/dev/null | grep -q '"nvidia-' || echo \
	  "Note: this fetches PyTorch's CUDA build (some GB), though no GPU shows here. For the CPU build" \
	  "stop now and use: make setup TORCH_INDEX=URL, with the URL from PyTorch's install page."
	$(INSTALL) $(TORCH_ARGS) torch
	$(INSTALL) -e '.[dev]'
	@touch $(STAMP)

run: $(STAMP)
	$(BIN)/dllmx run -m policy=baseline,parallel,fast-dllm task.limit=$(LIMIT)

test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	$(BIN)/dllmx bench decode

gpu-check: $(STAMP)
	$(BIN)/dllmx bench gpu-check output=$(OUT)
