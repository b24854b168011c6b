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
INSTALL := $(BIN)/python -m pip install --quiet --no-compile
WANTED  := $(VENV)/wanted.json
READY   := $(VENV)/ready
TESTING := $(VENV)/ready-test
LINTING := $(VENV)/ready-lint
KERNELS := $(wildcard hotpath/*.pyx hotpath/*.pxd actorgrid/device_memory/*.pyx)
# Through the links, so that ruff sees actorgrid.actors and bans a bare `actors`.
SOURCES := $(wildcard actorgrid/*/) $(wildcard actorgrid/*.py) tests setup.py

# Agents, servers and commands are started by the thousand: none of them should have to compile all of our modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run venv test test-system test-system-again test-versions coverage lint types bench soak sanitize wheel clean
.DEFAULT_GOAL := run

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "needs Python 3.11 or newer (set PYTHON=...)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "this python3 has no venv module (Debian/Ubuntu: apt install python3-venv python3-dev)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# What of pyproject.toml an environment is made from. A new file where that has changed; not where a contract has.
$(WANTED): $(BIN)/python pyproject.toml
	@$(BIN)/python -c 'import json, tomllib; of = tomllib.load(open("pyproject.toml", "rb")); print(json.dumps([of["build-system"], of["project"], of["dependency-groups"], of["tool"]["setuptools"]]))' >$@.new
	@if cmp -s $@ $@.new; then rm $@.new; else mv $@.new $@; fi

# What builds the kernels stays in the environment: an isolated build would fetch and unpack it anew each time.
$(VENV)/build-tools: $(WANTED)
	@$(BIN)/python -c 'import json; print(*json.load(open("$(WANTED)"))[0]["requires"], sep="\n")' >$@.txt
	$(INSTALL) --requirement $@.txt
	@touch $@

$(VENV)/libraries: $(WANTED)
	@$(BIN)/python -c 'import json; of = json.load(open("$(WANTED)"))[1]; print(*of["dependencies"], *sum((of["optional-dependencies"][name] for name in ("demo", "nvidia", "amd", "intel")), []), sep="\n")' >$@.txt
	$(INSTALL) --requirement $@.txt
	@touch $@

# The kernels that changed. The package itself is installed without them, as pip would compile all of them each time.
$(VENV)/kernels: $(VENV)/build-tools setup.py $(KERNELS)
	ACTORGRID_PURE_PYTHON=1 $(INSTALL) --no-build-isolation --no-deps --editable .
	$(BIN)/python setup.py --quiet build_ext --inplace >$(VENV)/kernels.log
	@touch $@

# The libraries are fetched and unpacked while the kernels compile: the one waits for the network and the disk, the other
# for processors. Hence the second make, which does two things at a time.
$(READY): $(WANTED) setup.py $(KERNELS)
	@$(MAKE) --no-print-directory -j 2 $(VENV)/libraries $(VENV)/kernels
	@# An editable install compiles nothing, and where PYTHONDONTWRITEBYTECODE is set every start would compile it all.
	@$(BIN)/python -m compileall -q -j 2 $(SOURCES)
	@# Of the libraries, what a host loads; pip would compile all of them, numpy's tests too.
	@$(BIN)/python -c 'from actorgrid.actors.host import boot, children; boot.preload(children.CHILDREN, of_a_cluster=True)'
	@$(BIN)/python -c 'import actorgrid.hotpath as h; print("hot path: " + ("compiled" if h.COMPILED else "plain Python (no C compiler was found: slower, same answers)"))'
	@touch $@

# --group needs pip 25.1: newer than what comes with Python 3.11 and 3.12.
$(TESTING): $(READY)
	$(INSTALL) --upgrade 'pip>=25.1'
	$(INSTALL) --group test
	@touch $@

$(LINTING): $(TESTING)
	$(INSTALL) --group lint
	@touch $@

run: $(READY)
	$(BIN)/actorgrid demo

venv: $(READY)

# Two tiers (docs/testing.md). In the first much of the time goes by in waiting for processes, so that two at a time
# leave a third of two cores unused. In the second each test has hosts of its own, which wait too: three. Files stay
# whole, because tests of one file share a started host. A process of tests that is lost ends the run: pytest-xdist may
# wait for ever for tests to give to the process that it starts in its place.
AT_A_TIME := --dist loadfile --no-loadscope-reorder --max-worker-restart 0 -n

test: $(TESTING)
	$(BIN)/python -m pytest -m 'not system and not soak' $(AT_A_TIME) 4

# Whole agents and clusters of them, network namespaces, faults: what `make test` leaves out.
test-system: $(TESTING)
	$(BIN)/python -m pytest -m 'system and not soak' --timeout 600 $(AT_A_TIME) 3

# The few that failed in it once more, one after the other: for CI, whose machine others use too.
test-system-again: $(TESTING)
	$(BIN)/python -m tests.again

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
	$(BIN)/python -m pytest -m soak --timeout 3600 -o faulthandler_timeout=7500

# The compiled kernels under AddressSanitizer and UndefinedBehaviorSanitizer; needs gcc.
sanitize: $(TESTING)
	$(BIN)/python -m tests.sanitize

wheel: $(BIN)/python
	$(BIN)/python -m pip wheel --no-deps --wheel-dir dist .

clean:
	rm -rf $(VENV) .venv-3.* build dist *.egg-info hotpath/*.c hotpath/*.so actorgrid/device_memory/*.cpp actorgrid/device_memory/*.so
