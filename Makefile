# Two commands do everything on a machine with Python 3.11+ and make: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help install demo test lint format bench validate regression filters clean

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

install: $(VENV)/.installed  ## set up .venv with everything needed to work on bieqno

demo: $(VENV)/.installed  ## run the main job and say where its result is
	@$(BIN)/python docs/examples/prior_to_posterior.py

test: $(VENV)/.installed  ## run all tests
	@$(BIN)/python -m pytest -q -n auto --dist worksteal

lint: $(VENV)/.installed  ## check style, formatting and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(VENV)/.installed  ## mend style and formatting
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(VENV)/.installed-bench  ## measure speed side by side with peers
	@$(BIN)/python benchmarks/operators.py
	@$(BIN)/python benchmarks/filters.py
	@$(BIN)/python benchmarks/regression.py
	@$(BIN)/python benchmarks/chunking.py
	@$(BIN)/python benchmarks/deep_kernel.py
	@$(BIN)/python benchmarks/ennf.py

validate: $(VENV)/.installed  ## compare tuned filters with the published scores (several minutes)
	@$(BIN)/python benchmarks/validate.py

regression: $(VENV)/.installed  ## run the paper's two regression studies (preset quick) into runs/
	@$(BIN)/python -m bieqno.experiments step-1d --preset quick --out runs
	@$(BIN)/python -m bieqno.experiments trig-2d --preset quick --out runs

filters: $(VENV)/.installed  ## run the paper's two filtering studies (preset quick) into runs/
	@$(BIN)/python -m bieqno.experiments lorenz63 --preset quick --out runs
	@$(BIN)/python -m bieqno.experiments lorenz96 --preset quick --out runs

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
