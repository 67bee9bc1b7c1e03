# make demo plays the story on the sandbox; make test passes everything. Both start from a bare checkout.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
# The tests start hundreds of processes: each would compile every module again.
unexport PYTHONDONTWRITEBYTECODE
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	command -v $$p >/dev/null && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
UV := .venv/bin/uv
# The build backend comes from the lock too, so the project is built after it is there, and with it.
SYNC := sync --quiet --frozen --active --inexact --extra sandbox --group build
BIN := .venv/bin
# Most tests wait for a process or a clock, so two cores keep many more workers than two busy.
WORKERS ?= 12
PYTEST = $(BIN)/pytest -q -n $(WORKERS) --dist loadgroup

.PHONY: help setup demo test test-real test-browser lint types imports collected unit bench reliability images clean

help: ## these targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: .venv/.synced ## .venv with the locked dependencies; does nothing when it is up to date

.venv/.synced: pyproject.toml uv.lock deploy/uv.txt
	@test -n "$(PYTHON)" || { echo "bizrq needs Python 3.11 or newer, and none is on PATH: install it, or run make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "$(PYTHON) has no venv module: install it (Debian: apt-get install python3-venv)" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r deploy/uv.txt || { echo "could not install uv by deploy/uv.txt with pip: is a package index reachable?" >&2; exit 1; }
	@VIRTUAL_ENV=$(CURDIR)/.venv $(UV) $(SYNC) --no-install-project
	@VIRTUAL_ENV=$(CURDIR)/.venv $(UV) $(SYNC) --no-build-isolation
	@touch $@

demo: setup ## the story of a tree of groups, played on the sandbox
	@$(BIN)/python examples/story.py

test: setup ## everything that must be green
	@$(MAKE) --no-print-directory --jobs 2 types lint imports collected
	@$(MAKE) --no-print-directory unit

# Compiles the modules and makes hypothesis' table of characters: each worker of pytest would do both for itself.
collected: setup
	@$(BIN)/python -c 'from hypothesis import strategies; strategies.text().validate()'
	@$(BIN)/pytest --collect-only -qq >.venv/.collected || { tail -n 40 .venv/.collected; exit 1; }

lint: setup ## ruff: rules and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: setup ## pyright
	@$(BIN)/pyright

imports: setup ## the import contracts of pyproject.toml
	@$(BIN)/lint-imports

unit: setup ## pytest, on all processors; ARGS="-k word"
	@$(PYTEST) $(ARGS)

test-real: setup ## the tests and short experiments that need a real API server, and those that need kubectl
	@$(BIN)/python -m tests.support.binaries
	@$(PYTEST) -n 3 -m "real or kubectl" $(ARGS)

test-browser: setup ## the tests in a Chromium of this machine, with the package that drives it
	@VIRTUAL_ENV=$(CURDIR)/.venv $(UV) $(SYNC) --group browser --no-build-isolation
	@$(BIN)/pytest -q -m browser $(ARGS)

bench: setup ## the benchmarks of docs/results.md in twelve minutes; most need a real API server. ARGS="B1 --write"
	@$(BIN)/python -m tests.bench $(ARGS)

reliability: setup ## the experiments of docs/results.md in full; over three hours where a real API server can be started
	@$(BIN)/python -m tests.reliability

images: ## .env: the base images of the Dockerfile and of compose by digest, as their registries have them now
	@sh deploy/images.sh .env

clean: ## remove what setup made
	rm -rf .venv
