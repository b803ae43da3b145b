# `make` or `make help` lists the targets.
.DEFAULT_GOAL := help
.PHONY: help setup run test test-fast test-floors test-traces test-clients test-versions test-gpu test-gpu-path test-second-runner test-cuda lint format generate docs ui lock bench
BIN := .venv/bin
PYTHON ?= python3
UI := rayllm/serving/router/ui/source
# A process for each core, and two for tests that mostly wait.
PARALLEL := --numprocesses logical --maxprocesses 8
WAITING := --numprocesses $(shell expr 2 \* $$(getconf _NPROCESSORS_ONLN)) --maxprocesses 8
# Two processes, each with clusters of its own: a cluster that starts keeps little more than one core busy.
REAL := --numprocesses 2 --dist loadgroup --no-loadscope-reorder --max-worker-restart 0

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-12s %s\n", $$1, $$2}'

setup: ## make .venv and install everything into it
	@scripts/setup.sh

run: setup ## serve the bundled demo model on 127.0.0.1:8000
	@$(BIN)/rayllm run serve_configs/demo.yaml

test: setup ## run the whole test suite, the real stack included
	@# The tests start hundreds of processes, which would compile the modules anew where Python may not write them.
	@$(BIN)/python -m compileall -q rayllm tests
	@$(BIN)/python -m pytest $(WAITING) tests/unit
	@$(BIN)/python -m pytest $(PARALLEL) --dist loadfile tests/vllm
	@$(BIN)/python -m pytest $(REAL) tests/integration

test-fast: setup ## run the tests that need neither Ray nor an engine
	@$(BIN)/python -m pytest $(WAITING) tests/unit

test-floors: ## run the fast tests on the lowest versions that pyproject.toml allows
	@VENV=.venv-floors FLOORS=1 scripts/setup.sh
	@.venv-floors/bin/python -m pytest $(WAITING) tests/unit

test-traces: setup ## install a collector of traces and run the tests that need one
	@[ -x .venv-collector/bin/phoenix ] || ($(BIN)/python -m venv .venv-collector && .venv-collector/bin/pip install --quiet arize-phoenix)
	@$(BIN)/python -m pytest tests/integration/test_traces.py

test-clients: setup ## install clients that people use and run docs/clients.md and coding agents with them
	@scripts/clients.sh
	@$(BIN)/python -m pytest tests/integration/test_documented_clients.py tests/integration/test_lm_eval.py tests/agents

test-gpu: setup ## run what only an NVIDIA GPU can show, and write the report to docs/gpu.md (PART="demo guided": those)
	@$(BIN)/python -m pytest $(or $(PART:%=tests/gpu/test_%.py),tests/gpu) --report docs/gpu.md

test-gpu-path: setup ## run what takes long on the path of GPUs, with fake GPUs
	@$(BIN)/python -m pytest tests/integration/test_gpu_path.py tests/gpu_path

test-second-runner: setup ## run the real stack on vLLM's second model runner, which GPUs have, in Triton's interpreter
	@PYTHONPATH=$(CURDIR)/tests/integration/interpreted_triton TRITON_INTERPRET=1 $(BIN)/python -m pytest $(addprefix tests/integration/test_,$(addsuffix .py,processes demo openai_api tools adapters guided_decoding continuation))

test-cuda: ## install the packages for CUDA into .venv-cuda, 11 GB, and test them without a GPU
	@VENV=.venv-cuda ENGINE=cuda scripts/setup.sh
	@.venv-cuda/bin/python -m pytest tests/cuda

test-versions: setup ## run the tests that need an engine with each series of vLLM (VERSIONS="0.27 0.32": with those)
	@$(BIN)/python scripts/check_versions.py $(VERSIONS)

lint: setup ## check style, types, import contracts, dependencies and generated files
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/deptry rayllm
	@$(BIN)/python scripts/house.py
	@$(BIN)/python scripts/generate.py --check

format: setup ## format the code
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

generate: setup ## write the generated files
	@$(BIN)/python scripts/generate.py

docs: ## build the documentation site into site/, and check its links
	@cmp -s docs/requirements.txt .venv-docs/installed || ($(PYTHON) -m venv .venv-docs \
		&& .venv-docs/bin/pip install --quiet --disable-pip-version-check --requirement docs/requirements.txt \
		&& cp docs/requirements.txt .venv-docs/installed)
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict --quiet

ui: ## build the page at /ui from its sources; needs Node
	@cd $(UI) && npm ci --no-audit --no-fund && npm run build

lock: setup ## lock the versions of all dependencies in requirements/
	@scripts/lock.sh

bench: setup ## run the benchmarks beside bare vLLM and the clouds' own clients, and faults under load
	@$(BIN)/python -m benchmarks.calls
	@$(BIN)/python -m benchmarks.adapters
	@$(BIN)/python -m benchmarks.pull
	@$(BIN)/python -m benchmarks.serving
	@$(BIN)/python -m benchmarks.batch engine
	@$(BIN)/python -m benchmarks.planning
	@$(BIN)/python -m benchmarks.commands
	@$(BIN)/python -m benchmarks.chaos --minutes 10
	@$(BIN)/python -m benchmarks.hostile
	@$(BIN)/python -m benchmarks.telemetry
