# Two commands do everything on a machine with Python 3.11+ and make: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help install demo reproduce test test-long lint format docs docs-serve docs-examples docs-results docs-numbers package bench campaign validate regression filters prior filter-prior clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

# The stamps are newer than what they were made from, so that a second call installs nothing.
$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "bieqno needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] + "; say which to use: make PYTHON=python3.12 ...")'
	@echo "Setting up $(VENV) (once, one or two minutes)"
	@$(PYTHON) -m venv $(VENV)
	@$(INSTALL) -e ".[dev]"
	@touch $@

$(VENV)/.installed-bench: $(VENV)/.installed
	@$(INSTALL) -e ".[bench]"
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	@$(INSTALL) -e ".[docs]"
	@touch $@

install: $(VENV)/.installed  ## set up .venv with everything needed to work on bieqno

demo: $(VENV)/.installed  ## run a choice of the paper's cases and make the page of results (under ten minutes)
	@$(BIN)/bieqno run demo --preset quick

reproduce: $(VENV)/.installed  ## run everything with the paper's settings into runs/ (hours; resumes where it was stopped)
	@$(BIN)/bieqno run all --preset paper --resume

test: $(VENV)/.installed  ## run the tests; those of the numbers with the compiler flags that users have
	@$(BIN)/python -m pytest -q -n auto --dist worksteal -m "not numbers and not long"
	@BIEQNO_USER_FLAGS=1 $(BIN)/python -m pytest -q -n auto --dist worksteal -m numbers $$(grep -rl --include='*.py' mark.numbers tests)

test-long: $(VENV)/.installed  ## run the tests that `make test` leaves out: all pages of the docs, clusters, real records
	@$(BIN)/python -m pytest -q -n auto --dist worksteal -m long

lint: $(VENV)/.installed  ## check style, formatting, types, and for what is unsafe
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/bandit -q -ll -r src campaigns benchmarks docs
	@$(BIN)/python -m pip --disable-pip-version-check check

format: $(VENV)/.installed  ## fix style and formatting
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(VENV)/.installed-docs  ## build the site into build/site, strict (runs an example only if its picture is missing)
	@$(BIN)/python docs/build_site.py build

docs-serve: $(VENV)/.installed-docs  ## build the site and show it at localhost:8000, following changes
	@$(BIN)/python docs/build_site.py serve

docs-examples: $(VENV)/.installed  ## run the examples for their pictures (about twenty minutes)
	@$(BIN)/python docs/build_site.py examples

docs-results: $(VENV)/.installed  ## keep the results in runs/ as docs/results, and put their numbers into README and docs
	@$(BIN)/bieqno report runs --keep docs/results
	@$(BIN)/python docs/check_numbers.py --write

docs-numbers: $(VENV)/.installed  ## check that the marked numbers in README and docs are those of docs/results
	@$(BIN)/python docs/check_numbers.py

package: $(VENV)/.installed-docs  ## build wheel and sdist into dist/ and check them, as a release does
	@rm -rf dist
	@$(BIN)/python -m build --outdir dist .
	@$(BIN)/python -m twine check --strict dist/*

bench: $(VENV)/.installed-bench  ## measure speed side by side with peers
	@$(BIN)/python benchmarks/operators.py
	@$(BIN)/python benchmarks/filters.py
	@$(BIN)/python benchmarks/regression.py
	@$(BIN)/python benchmarks/chunking.py
	@$(BIN)/python benchmarks/deep_kernel.py
	@$(BIN)/python benchmarks/ennf.py
	@$(BIN)/python benchmarks/local_filter.py
	@$(BIN)/python benchmarks/outside.py

campaign: $(VENV)/.installed  ## try to break bieqno in large numbers (hours), and put the tables into docs/reliability.md
	@$(BIN)/python campaigns/calls.py --workers 2 --write
	@$(BIN)/python campaigns/files.py --workers 2 --write
	@$(BIN)/python campaigns/processes.py interrupted --write
	@$(BIN)/python campaigns/processes.py together --write
	@$(BIN)/python campaigns/disks.py --write
	@$(BIN)/python campaigns/threads.py --write
	@$(BIN)/python campaigns/soak.py cycled --write
	@$(BIN)/python campaigns/soak.py studies --write
	@$(BIN)/python campaigns/coverage_of_intervals.py --write

validate: $(VENV)/.installed  ## compare tuned filters with the published scores (several minutes)
	@$(BIN)/python benchmarks/validate.py

regression: $(VENV)/.installed  ## run the paper's two regression studies (preset quick) into runs/
	@$(BIN)/bieqno run step-1d trig-2d --preset quick

filters: $(VENV)/.installed  ## run the paper's two filtering studies (preset quick) into runs/
	@$(BIN)/bieqno run lorenz63 lorenz96 --preset quick

prior: $(VENV)/.installed  ## train the prior over functions that comes with the package (resumes where it was stopped)
	@$(BIN)/python -m bieqno.lab.pretraining

filter-prior: $(VENV)/.installed  ## train the ensemble filter that comes with the package (resumes where it was stopped)
	@$(BIN)/python -m bieqno.lab.filter_pretraining

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
