# make demo: install into .venv and run the main job.   make test: install into .venv and run every check.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PYTEST ?= $(BIN)/python -m pytest
# Two more than there are processors: some tests wait for a child or a server.
WORKERS ?= $(shell expr $$(nproc) + 2)
LOCK := --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --upgrade

# The tests start many processes: they are to find compiled modules.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test tests check types lint compiled assets lock clean

demo: $(VENV)/server.stamp assets
	$(BIN)/python -m examples.tune_over_http

# mypy uses one processor for a minute: the other one goes through the quick checks, compiles the modules and begins with
# the tests. A type error is told at once and fails the run, which ends with its tests; make check has it without them.
test:
	$(MAKE) --jobs=2 types tests

tests: lint compiled
	$(PYTEST) --numprocesses $(WORKERS) --dist worksteal

check: lint types

types: $(VENV)/dev.stamp assets
	$(BIN)/mypy

lint: $(VENV)/dev.stamp assets
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-logo

# One collection compiles all modules and the assertions of all tests, beside mypy, which uses one processor. Without it
# every worker would do so for itself, all at the same time. What cannot be collected is told by the tests.
compiled: $(VENV)/dev.stamp assets
	-@$(PYTEST) --collect-only -qq >/dev/null

# The dashboard's two scripts: fetched by npm, checked against the lock's hashes, copied to api/static/vendor.
assets: $(VENV)/server.stamp
	$(BIN)/python -m tilewright.api.assets

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/server.stamp: requirements/server.txt pyproject.toml | $(BIN)/python
	$(INSTALL) --require-hashes -r requirements/server.txt
	$(INSTALL) --no-build-isolation --no-deps -e .
	touch $@

$(VENV)/dev.stamp: requirements/dev.txt | $(VENV)/server.stamp
	$(INSTALL) --require-hashes -r requirements/dev.txt
	touch $@

# New versions: resolve again for every Python and platform, keeping hashes and no addresses.
lock:
	uv pip compile -q pyproject.toml --extra server --extra checkout $(LOCK) -o requirements/server.txt
	uv pip compile -q pyproject.toml --extra dev $(LOCK) -o requirements/dev.txt

clean:
	rm -rf $(VENV) node_modules api/static/vendor build *.egg-info
