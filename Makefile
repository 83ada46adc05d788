# Everything runs in .venv. `make install` creates it, and updates it when a requirement changes.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
TILELANG := .venv-tilelang
PROJECTS := . client plugins/command plugins/cutedsl plugins/inductor plugins/mcp plugins/nvrtc plugins/optuna plugins/ray plugins/team plugins/torch plugins/triton plugins/tvm_ffi
# Beside them, in an environment of its own: plugins/tilelang.
# torch for the CPU. PyPI's wheel for Linux brings 2.5 GiB of CUDA, and an NVRTC older than the pinned one: `make install
# CUDA=1` takes it from there.
CUDA ?=
TORCH_INDEX ?= $(if $(CUDA),,https://download.pytorch.org/whl/cpu)
TORCH := -c constraints.txt --retries 0 --no-deps $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch
# Measured as wheels for CPython 3.11 on x86-64; to be measured again when constraints.txt changes by much.
DOWNLOAD := 0.7 GiB (torch 180 MiB, Triton 180 MiB, CuTe DSL 90 MiB, Ray 80 MiB, NVRTC 50 MiB, 90 smaller packages)
INSTALLED := 2.7 GiB

# Ends with an error if the torch that pip would install requires CUDA's wheels.
define REFUSE_CUDA
import json, sys
found = json.loads(sys.stdin.read() or "{\"install\": []}")["install"]
if any(line.startswith(("nvidia-", "cuda-")) for one in found for line in one["metadata"].get("requires_dist", ())):
    sys.exit("pip finds only a torch with 2.5 GiB of CUDA: $(TORCH_INDEX) does not answer, or has no wheel for this Python.\n"
             "make install TORCH_INDEX=URL takes another index, make install CUDA=1 that torch.")
endef
export REFUSE_CUDA

.DEFAULT_GOAL := help
.PHONY: help install tilelang wheels demo lint test suite chaos bench screenshot vendor release-check

help:  ## list the targets
	@awk -F ':.*##' '/^[a-z-]+:.*##/ { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP)  ## install all distributions, editable, and the development tools into .venv

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than 3.11; try make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' || { echo "no ensurepip; apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv .venv

# The build backend comes first, at the pinned version, so that pip need not download one for each build; then torch, from an
# index of its own, which need not be reachable where pip finds torch for the CPU elsewhere. `-e .` stands beside
# `-e .[dev]`, or pip looks for the plugins' requirement `ktuned` in its index.
$(STAMP): $(BIN)/python $(PROJECTS:%=%/pyproject.toml) constraints.txt
	@echo "make install downloads up to $(DOWNLOAD) into $(CURDIR)/.venv, $(INSTALLED) on disk; nothing outside it changes."
	$(BIN)/python -m pip install -q -c constraints.txt hatchling
ifeq ($(CUDA),)
	@$(BIN)/python -m pip install -q --dry-run --report - $(TORCH) | $(BIN)/python -c "$$REFUSE_CUDA"
endif
	$(BIN)/python -m pip install -q $(TORCH)
	$(BIN)/python -m pip install -q -c constraints.txt --no-build-isolation $(PROJECTS:%=-e %) -e '.[dev]'
	@touch $@

# TileLang in an environment of its own, which sees the packages of .venv behind its own: its tvm-ffi is older than theirs.
# Made by `make test`; nothing else needs it. Without it the tests of TileLang are skipped, with this target's name.
$(TILELANG)/.installed: $(STAMP) constraints-tilelang.txt plugins/tilelang/pyproject.toml
	@echo "TileLang's tests download up to 80 MiB into $(CURDIR)/$(TILELANG), 300 MiB on disk."
	@rm -rf $(TILELANG)
	@$(BIN)/python -m venv --without-pip $(TILELANG)
	@site=$$($(TILELANG)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	theirs=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	echo "import site; site.addsitedir('$$theirs')" > $$site/behind.pth; \
	ln -s $$theirs/nvidia $$site/nvidia  # CUDA's bindings look for NVRTC in an environment's own directory alone
	@$(BIN)/python -m pip --python $(TILELANG)/bin/python install -q --no-deps -r constraints-tilelang.txt
	@$(BIN)/python -m pip --python $(TILELANG)/bin/python install -q --no-deps --no-build-isolation -e plugins/tilelang
	@touch $@

tilelang: $(TILELANG)/.installed  ## make the environment of TileLang's tests, .venv-tilelang

wheels: $(BIN)/python  ## build the wheels of all distributions into dist/
	$(BIN)/python -m pip install -q -c constraints.txt hatchling
	$(BIN)/python -m pip wheel -q --no-deps --no-build-isolation --wheel-dir dist $(PROJECTS:%=./%) ./plugins/tilelang

release-check: install  ## build all wheels and sdists into dist/, install each in a clean environment, and try it
	$(BIN)/python tests/packaging/release_check.py

demo: install  ## tune the CPU example, edit it, tune it again, look the winner up
	$(BIN)/python examples/demo.py

lint: install  ## run ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# mypy takes one core for a minute: the suite begins beside it.
test: install  ## lint, and run the whole suite
	@$(MAKE) --no-print-directory -j 2 lint suite

# More processes than cores, because tests mostly wait for processes, deadlines and gates. In the files' order: the other
# order puts files of few tests last, and those take the longest. Failed tests run once more, alone, as in CPython's own
# suite: a test that passes then depends on the load of the machine, and must be mended.
suite: install
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder || \
		{ [ $$? -eq 1 ] && $(BIN)/python -m pytest --last-failed --last-failed-no-failures none; }
	@$(MAKE) --no-print-directory tilelang || { echo "skipped: TileLang's tests; to run them: make tilelang"; exit 0; }; \
	$(TILELANG)/bin/python -m pytest -q -n 2 --dist loadfile tests/tilelang

chaos: install  ## inject every kind of failure at once, seeded (SEED=3), then make 500 random edits
	$(BIN)/python -m pytest tests/chaos tests/judging/cheats tests/ray tests/benchmarks tests/team -m 'not gpu' -o faulthandler_timeout=0 --chaos=full --chaos-seed=$(or $(SEED),3)
	$(BIN)/python tests/author/run.py --authors $$((($$(nproc) + 1) / 2)) --seed $(or $(SEED),3) --logs $$(mktemp -d)

bench: install  ## run the benchmarks, each beside its budget
	@for benchmark in rest pipeline lookup hostile save daemon_cost; do \
		echo "== $$benchmark"; $(BIN)/python benchmarks/$$benchmark.py || exit 1; \
	done
	@for benchmark in grouped pipeline winner lanes disturbance; do \
		echo "== gpu $$benchmark"; $(BIN)/python benchmarks/gpu.py $$benchmark || exit 1; \
	done

screenshot: install  ## draw docs/images/live_screen.svg from a real run
	$(BIN)/python docs/images/make_live_screen.py

# The report's charting library; ktuned/report/assets/SOURCES.md has the same figures.
ECHARTS := 6.1.0
ECHARTS_TARBALL := 681aff88cc1038c3fa941a3a53d1b177a52250b05335efc607d6105ae13be481
ASSETS := $(CURDIR)/ktuned/report/assets

vendor:  ## fetch the report's charting library again, and check its digest
	cd "$$(mktemp -d)" && npm pack --silent echarts@$(ECHARTS) && \
		echo "$(ECHARTS_TARBALL)  echarts-$(ECHARTS).tgz" | sha256sum --check && tar xzf echarts-$(ECHARTS).tgz && \
		cp package/dist/echarts.min.js $(ASSETS)/ && cp package/LICENSE $(ASSETS)/echarts.LICENSE && \
		cp package/NOTICE $(ASSETS)/echarts.NOTICE && cp package/licenses/LICENSE-d3 $(ASSETS)/echarts.LICENSE-d3
