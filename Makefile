# Every target does its own set-up on a machine with Python 3.11, pip and make, and is quick when nothing changed.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
PIP := $(BIN)/pip --disable-pip-version-check install --quiet --constraint constraints.txt
# One arithmetic thread a test worker: two workers on two cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n 2

.PHONY: demo check test bench results soak clean

demo: .venv/base
	$(BIN)/hush demo

check: .venv/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: check
	$(PYTEST) -m "not soak" --cov --cov-report=term

bench: .venv/dev
	$(BIN)/hush bench

results: .venv/base
	$(BIN)/python scripts/results.py

soak: .venv/dev
	$(PYTEST) -m soak

clean:
	rm -rf .venv build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/base: pyproject.toml constraints.txt | .venv/bin/python
	@echo "Installing Hush into .venv (a few minutes the first time)"
	$(PIP) --editable .
	@touch $@

.venv/dev: .venv/base
	@echo "Installing what the checks need"
	$(PIP) --editable '.[dev]'
	@touch $@
