# Every target sets itself up on a machine with Python 3.11 to 3.13, pip and make, and is quick when nothing has changed.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
INSTALL := --disable-pip-version-check install --quiet --constraint constraints.txt
PIP := $(BIN)/pip $(INSTALL)
# For two cores: one arithmetic thread per test worker, and three workers, because some tests wait for time limits.
# Compiled files are kept in any case, because many processes are started.
PYTEST := env --unset=PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=1 $(BIN)/pytest -n 3 --dist worksteal
CLEAN := build/$(notdir $(PYTHON))

.PHONY: demo check quick test tests kernels coverage build build-all sdist bench docs pages notebooks results soak clean

demo: .venv/base
	$(BIN)/hush demo

# Format, lint, types and import rules of src, tests, scripts and examples, and of the code in the documentation.
# .pre-commit-config.yaml runs the same commands.
check: .venv/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m scripts.check_docs_code

# The fast tier: under a minute on two cores. tests/conftest.py says what is slow.
quick: .venv/dev
	$(PYTEST) -n 2 -m "not soak and not slow and not interpreter"

# The checks keep one core busy, mostly with types, while the first tests run.
test: .venv/dev
	$(MAKE) --no-print-directory --jobs 2 check tests

tests: .venv/dev
	$(PYTEST) -m "not soak and not interpreter"

# The tests of GPU kernels in Triton's interpreter; with a GPU they are among the others.
kernels: .venv/dev
	$(PYTEST) -n 2 -m interpreter

coverage: .venv/dev
	$(PYTEST) -m "not soak" --cov --cov-report=term

soak: .venv/dev
	$(PYTEST) -n 2 -m soak

# A wheel, installed into a clean environment; the demo runs from there, outside the source tree, so that a file missing
# from the wheel is noticed. With another interpreter: make build PYTHON=python3.12
build: .venv/base
	rm -rf build dist
	$(BIN)/pip --disable-pip-version-check wheel --quiet --no-deps --wheel-dir dist .
	$(PYTHON) -m venv $(CLEAN)
	$(CLEAN)/bin/pip $(INSTALL) dist/hush-*.whl
	command=$$PWD/$(CLEAN)/bin/hush && cd $$(mktemp -d) && env --unset=PYTHONPATH $$command demo

# A source distribution and its wheel in dist.
sdist: .venv/dev
	$(BIN)/python -m build --outdir dist .

# The same with every supported interpreter that is installed.
build-all:
	for version in 3.11 3.12 3.13; do \
		if python$$version --version 2> /dev/null; then $(MAKE) build PYTHON=python$$version || exit 1; fi; done

bench: .venv/dev
	$(BIN)/hush bench

# The documentation site in build/site: strict, offline, from the pages, the docstrings and the executed notebooks.
docs: pages notebooks
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# The pages that are written from results and code.
pages: .venv/dev
	$(BIN)/python -m scripts.results
	$(BIN)/python -m scripts.performance
	$(BIN)/python -m scripts.scaling
	$(BIN)/python -m scripts.recipe_pages
	$(BIN)/python -m scripts.accuracy_by_budget
	$(BIN)/python -m scripts.reference_pages

# Every notebook, executed into build/notebooks; one that was executed with the same code before is left as it is.
notebooks: .venv/dev
	OMP_NUM_THREADS=1 $(BIN)/python -m scripts.notebooks

results: .venv/base
	$(BIN)/python -m scripts.results

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
