# One command per job. `make setup` is quick once warm, so everything that needs it asks for it.
PYTHON ?= python3.11
# By its own name and not by the checkout's link, which would be part of what DeepSpeed compiles.
VENV = $(realpath .venv)/bin
# Where it is set, every one of a run's processes would compile all of Sluice at its start.
unexport PYTHONDONTWRITEBYTECODE
PACKAGES := schemas producers consumers environments inference verifier stream_jobs learner infra
# mypy refuses a folder that holds no Python.
CHECKED := $(foreach folder,$(PACKAGES) tests benchmarks examples,\
	$(if $(wildcard $(folder)/*.py $(folder)/*/*.py),$(folder)))
PYTEST = $(VENV)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help setup venv lock fmt check unit test sim e2e bench demo docs records clean

help:  ## list the commands
	@grep -hE '^[a-z0-9]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 10

RIGHT_PYTHON = import sys; sys.exit(0 if sys.version_info[:2] == (3, 11) else "sluice needs Python 3.11, \
this is " + sys.version.split()[0] + ": install it, or say make PYTHON=path/to/python3.11")

# The environment is found by the shell: when make reads a recipe, a fresh checkout has no link yet.
setup:  ## install all that Sluice needs under the cache folder (idempotent)
	@$(PYTHON) -c '$(RIGHT_PYTHON)'
	@$(PYTHON) -m infra.setup.bootstrap --with-tools
	@"$$(readlink -f .venv)/bin/python" -m infra.setup

venv:  ## only the Python environment
	@$(PYTHON) -c '$(RIGHT_PYTHON)'
	@$(PYTHON) -m infra.setup.bootstrap

lock: venv  ## resolve requirements.in and overrides.txt into constraints.txt
	$(VENV)/uv pip compile --python-version 3.11 --override overrides.txt --no-header --no-annotate -q \
		requirements.in -o constraints.txt

fmt: venv  ## format and sort imports
	$(VENV)/ruff format .
	$(VENV)/ruff check --fix .

check: venv  ## formatting, lint, types, layers, sizes and names
	$(VENV)/ruff format --check .
	$(VENV)/ruff check .
	$(VENV)/mypy $(CHECKED)
	PYTHONPATH=. $(VENV)/lint-imports
	$(PYTEST) -q tests/architecture

# Tests in a folder with_<library> load it as they are collected: torch alone takes a third of the
# time that the quick part may take. So do the measurements, small as they are.
unit: venv  ## the quick part of the tests
	$(PYTEST) -q -m "not gpu and not kafka and not vllm and not slow" \
		--ignore-glob '*/with_*' --ignore tests/unit/benchmarks \
		tests/unit tests/schemas

test: setup  ## everything that needs no GPU
	$(PYTEST) -m "not gpu" tests

SLUICE_SIM_HISTORIES ?= 10000
sim: venv  ## the long simulation
	SLUICE_SIM_HISTORIES=$(SLUICE_SIM_HISTORIES) $(PYTEST) -m "not gpu" tests/simulation --timeout 3600

e2e: setup  ## real brokers and real engines only
	$(PYTEST) -m "not gpu" tests/e2e tests/contract

bench: setup  ## every measurement, as a table
	./sluice bench all

demo: setup  ## train a real model over a real Kafka
	./sluice up
	./sluice run examples/demo.toml

docs: venv  ## rewrite what is generated from the code
	$(VENV)/python -m infra.docs
	$(VENV)/python -m infra.grafana.write

records: venv  ## generate schemas/records from schemas/avro
	$(VENV)/python -m infra.records_codegen

clean:  ## remove what the tools left in the checkout (the cache folder stays)
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
