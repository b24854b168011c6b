# Needs python3 (3.11+, with venv) and make; a C compiler makes it fast.
#
# Without PYTHON=... all is done in .venv, whichever Python is in it. With it, in .venv where that is of the same
# version or not there yet, and else beside it, in .venv-3.13. Kernels of several versions lie side by side too: the
# name of each says which Python loads it.
VENV := .venv
ifdef PYTHON
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
ifeq ($(VERSION),)
$(error PYTHON=$(PYTHON) does not start a Python)
endif
ifneq ($(wildcard .venv/bin/python),)
VENV := $(if $(wildcard .venv/lib/python$(VERSION)),.venv,.venv-$(VERSION))
endif
endif
PYTHON  ?= python3
BIN     := $(VENV)/bin
READY   := $(VENV)/ready
TESTING := $(VENV)/ready-test
LINTING := $(VENV)/ready-lint
KERNELS := $(wildcard hotpath/*.pyx hotpath/*.pxd)
# Through the links, so that ruff sees actorgrid.actors and bans a bare `actors`.
SOURCES := $(wildcard actorgrid/*/) $(wildcard actorgrid/*.py) tests setup.py

# Agents, servers and commands are started by the thousand: none of them should have to compile all of our modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run venv test test-system test-versions coverage lint types bench soak sanitize wheel clean
.DEFAULT_GOAL := run

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "needs Python 3.11 or newer (set PYTHON=...)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "this python3 has no venv module (Debian/Ubuntu: apt install python3-venv python3-dev)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Re-installs when the metadata changes, recompiles the kernels that changed; new .py files need neither. What builds
# the kernels stays in the environment: an isolated build would fetch and unpack it anew each time.
$(READY): $(BIN)/python pyproject.toml setup.py $(KERNELS)
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' >$(VENV)/build-requires
	$(BIN)/python -m pip install --quiet --requirement $(VENV)/build-requires
	$(BIN)/python -m pip install --quiet --no-build-isolation --editable '.[demo,nvidia]'
	@# An editable install compiles nothing, and where PYTHONDONTWRITEBYTECODE is set every start would compile it all.
	@$(BIN)/python -m compileall -q -j 2 $(SOURCES)
	@$(BIN)/python -c 'import actorgrid.hotpath as h; print("hot path: " + ("compiled" if h.COMPILED else "plain Python (no C compiler was found: slower, same answers)"))'
	@touch $@

# --group needs pip 25.1: newer than what comes with Python 3.11 and 3.12.
$(TESTING): $(READY)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --group test
	@touch $@

$(LINTING): $(TESTING)
	$(BIN)/python -m pip install --quiet --group lint
	@touch $@

run: $(READY)
	$(BIN)/actorgrid demo

venv: $(READY)

# Two tiers (docs/testing.md). Two at a time on any machine: most of the time goes by in waiting for processes. Files
# stay whole, because tests of one file share a started host.
TWO_AT_A_TIME := -n 2 --dist loadfile --no-loadscope-reorder

test: $(TESTING)
	$(BIN)/python -m pytest -m 'not system and not soak' $(TWO_AT_A_TIME)

# Whole agents and clusters of them, network namespaces, faults: what `make test` leaves out.
test-system: $(TESTING)
	$(BIN)/python -m pytest -m 'system and not soak' $(TWO_AT_A_TIME)

# Both tiers on every CPython of the machine from 3.11 on: before a release, and when a dependency or a Python is new.
test-versions: $(TESTING)
	$(BIN)/python -m tests.versions test test-system

coverage: $(TESTING)
	$(BIN)/python -m tests.measure -m 'not soak'

lint: $(LINTING)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/lint-imports
	$(BIN)/bandit --quiet --configfile pyproject.toml --severity-level medium --recursive actors chaos configs hotpath supervisors transports actorgrid/cli actorgrid/client

types: $(LINTING)
	$(BIN)/mypy

bench: $(TESTING)
	$(BIN)/python -m tests.bench

soak: $(TESTING)
	$(BIN)/python -m pytest -m soak --timeout 3600

# The compiled kernels under AddressSanitizer and UndefinedBehaviorSanitizer; needs gcc.
sanitize: $(TESTING)
	$(BIN)/python -m tests.sanitize

wheel: $(BIN)/python
	$(BIN)/python -m pip wheel --no-deps --wheel-dir dist .

clean:
	rm -rf $(VENV) .venv-3.* build dist *.egg-info hotpath/*.c hotpath/*.so
