# Everything runs in .venv, which is made and filled on first use and left alone afterwards.
# PIP_ARGS adds arguments for pip, such as another index; docs/testing.md lists what may be set.

PYTHON ?= python3.11
PIP_ARGS ?=
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
# The build that the pinned CPU engine wants; the tests use the same, so that it comes once.
TORCH ?= 2.13.0+cpu

VENV := .venv
BIN := $(VENV)/bin
export PIP_ARGS
export PIP_DISABLE_PIP_VERSION_CHECK := 1
unexport VIRTUAL_ENV

# Stamps: a repeated `make` does nothing until pyproject.toml changes.
TEST_ENV := $(VENV)/.s3kv-test
ENGINE_ENV := $(VENV)/.s3kv-engine
PIP_INDEX := $(VENV)/.s3kv-pip-args

# Hard limits in seconds, see docs/testing.md; S3KV_BUDGET_FACTOR stretches them all.
BUDGET_LINT := 60
BUDGET_FAST := 250
BUDGET_INTEGRATION := 330
BUDGET_ENGINE := 840
BUDGET_ALL := 3600

FAST := tests/unit tests/property tests/bucket tests/simulation tests/faults
PYTEST := $(BIN)/python -m pytest -q
SUITE := $(BIN)/python tools/suite.py
FULL_COUNTS := HYPOTHESIS_PROFILE=nightly S3KV_SIM_SEEDS=10000 S3KV_STORM_S=120
RESUME :=

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast test-all lint bench clean run-lint run-fast run-integration \
	run-engine

help:
	@echo "make demo       real engine, model and object store: cold, restarted, damaged"
	@echo "make test       lint and all suites, under 25 minutes on 2 cores from nothing"
	@echo "make test-fast  the suites that need no engine, under 2 minutes once installed"
	@echo "make test-all   the full counts; writes docs/test-report.md; can be interrupted"
	@echo "make lint       format, lint, types, import rules"
	@echo "make bench      benchmark of the index: JSON on stdout"
	@echo "make clean      remove build products and caches (keeps .venv)"

# --- environment -------------------------------------------------------------------------------

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found; set PYTHON=..." >&2; exit 1; }
	@echo "=== making $(VENV) with $(PYTHON)"
	$(PYTHON) -m venv $(VENV)

# The default index does not carry PyTorch's CPU builds. Where pip cannot see this one already,
# PyTorch's own index is added.
$(PIP_INDEX): | $(BIN)/python
	@echo "=== looking for the CPU build of torch"
	@if $(BIN)/pip index versions $(PIP_ARGS) torch 2>/dev/null | grep -qF '$(TORCH)'; \
	then echo "$(PIP_ARGS)" > $@; \
	else echo "$(PIP_ARGS) --extra-index-url $(TORCH_CPU_INDEX)" > $@; fi

$(TEST_ENV): pyproject.toml $(PIP_INDEX)
	@echo "=== installing s3kv and its test tools"
	$(BIN)/pip install --progress-bar on $$(cat $(PIP_INDEX)) -e '.[test]' 'torch==$(TORCH)'
	@touch $@

$(ENGINE_ENV): $(TEST_ENV)
	@echo "=== installing the CPU engine (some minutes, once)"
	$(BIN)/pip install --progress-bar on $$(cat $(PIP_INDEX)) -e '.[test,cpu-engine]'
	@# Built for another torch; transformers imports them when they are there, and fails.
	$(BIN)/pip uninstall -q -y torchvision torchaudio torchcodec
	@touch $@

# --- commands ----------------------------------------------------------------------------------

demo: $(ENGINE_ENV)
	$(BIN)/s3kv demo

lint: $(TEST_ENV) run-lint

test-fast: $(TEST_ENV) run-fast

test: $(ENGINE_ENV)
	@rm -rf build/suites
	@status=0; for suite in lint fast integration engine; do \
		$(MAKE) --no-print-directory run-$$suite || status=1; \
	done; \
	echo "=== summary"; $(SUITE) summary lint fast integration engine; exit $$status

run-lint:
	@$(SUITE) run lint $(BUDGET_LINT) $(RESUME) -- sh -ec '\
		$(BIN)/ruff format --check .; $(BIN)/ruff check .; \
		$(BIN)/mypy; $(BIN)/python tools/check_imports.py'

run-fast:
	@$(SUITE) run fast $(BUDGET_FAST) $(RESUME) -- $(PYTEST) $(FAST)

run-integration:
	@$(SUITE) run integration $(BUDGET_INTEGRATION) $(RESUME) -- $(PYTEST) tests/integration

run-engine:
	@$(SUITE) run engine $(BUDGET_ENGINE) $(RESUME) -- $(PYTEST) tests/engine

# Resumable: a suite that passed on exactly these sources is not run again. The fast and integration
# suites have larger counts; the others are those of `make test`.
test-all: $(ENGINE_ENV)
	@status=0; \
	for suite in lint engine; do \
		$(MAKE) --no-print-directory run-$$suite RESUME=--resume || status=1; \
	done; \
	env $(FULL_COUNTS) $(SUITE) run full-integration $(BUDGET_ALL) --resume -- \
		$(PYTEST) tests/integration --timeout=600 || status=1; \
	env $(FULL_COUNTS) $(SUITE) run full-fast $(BUDGET_ALL) --resume -- \
		$(PYTEST) $(FAST) --timeout=600 || status=1; \
	$(SUITE) run gpu $(BUDGET_ALL) --resume -- $(PYTEST) tests/gpu --timeout=600 || status=1; \
	$(SUITE) report docs/test-report.md lint full-fast full-integration engine gpu || status=1; \
	exit $$status

# JSON on stdout, the rest beside it: make -s bench > figures.json
bench: $(TEST_ENV)
	@$(BIN)/python -m tools.bench_index
	@echo "Benchmarks of the data path are still to come; 'make demo' prints times to first token." >&2

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find s3kv tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
