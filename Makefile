# Each target does its own set-up in .venv; only Python 3.11+ and make are needed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: setup demo browser test lint bench
.SECONDARY:

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("unimarg needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	touch $@

# Ends with a service and its page, until Ctrl-C; make demo SERVE=no ends by itself
SERVE ?= yes
demo: setup
	$(BIN)/unimarg demo $(if $(filter no,$(SERVE)),--no-serve)

# Debian's Chromium for the tests of the page; without it they are skipped
browser:
	command -v chromium || { $(if $(filter 0,$(shell id -u)),,sudo) apt-get update; $(if $(filter 0,$(shell id -u)),,sudo) apt-get install --yes --no-install-recommends chromium; }

test: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -n 2 --dist loadfile

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

# Against other libraries, side by side in one run: on the examples, or on NETWORKS=folder of .bif files. Its own environment;
# PEERS="pomegranate nbn" adds those two, each in one more environment of several gigabytes. RUN=--long for 50 evidence sets.
NETWORKS ?=
PEERS ?=
RUN ?=
OUT ?= bench
BENCH := .venv-bench

$(BENCH)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable . pgmpy
	touch $@

$(BENCH)-%/.ready: constraints.txt
	$(PYTHON) -m venv $(BENCH)-$*
	$(BENCH)-$*/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt $*
	touch $@

bench: $(BENCH)/.ready $(PEERS:%=$(BENCH)-%/.ready)
	$(BENCH)/bin/python benchmarks/peers/run.py $(OUT) $(if $(NETWORKS),--networks $(NETWORKS)) $(if $(PEERS),--peers $(PEERS)) $(RUN)
