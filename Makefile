# Everything happens in .venv; `make install` makes it once and again only when a requirement changes.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
PROJECTS := pyproject.toml client/pyproject.toml plugins/cutedsl/pyproject.toml plugins/nvrtc/pyproject.toml plugins/torch/pyproject.toml plugins/tvm_ffi/pyproject.toml

.DEFAULT_GOAL := help
.PHONY: help install demo lint test chaos bench

help:  ## say what can be made
	@awk -F ':.*##' '/^[a-z]+:.*##/ { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP)  ## the distributions, editable, with what development needs, into .venv

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than 3.11; try make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' || { echo "no ensurepip; apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv .venv

# The build backend comes first, at the pinned version, so that pip need not fetch another one for each build.
# `-e .` stands beside `-e .[dev]`, or pip looks for the plugin's requirement `ktuned` in its index.
$(STAMP): $(BIN)/python $(PROJECTS) constraints.txt
	$(BIN)/python -m pip install -q -c constraints.txt hatchling
	$(BIN)/python -m pip install -q -c constraints.txt --no-build-isolation \
		-e . -e client -e plugins/cutedsl -e plugins/nvrtc -e plugins/torch -e plugins/tvm_ffi -e '.[dev]'
	@touch $@

demo: install  ## tune the CPU example, edit it, watch it being tuned again, look the winner up
	$(BIN)/python examples/demo.py

lint: install  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# More processes than cores: much of a test's time is waiting for processes, deadlines and gates. In the files' order: the
# other one puts files of few tests last, and those take the longest. A test that fails in this crowd is run once more, alone,
# as CPython's own suite does: what fails then is broken, what passes is a test to mend.
test: lint  ## lint, then the whole suite
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder || \
		{ [ $$? -eq 1 ] && $(BIN)/python -m pytest --last-failed --last-failed-no-failures none; }

chaos: install  ## everything that can go wrong at once, seeded (SEED=3), for up to ten minutes
	$(BIN)/python -m pytest tests/chaos -m 'not gpu' -o faulthandler_timeout=0 --chaos=full --chaos-seed=$(or $(SEED),3)

bench: install  ## the benchmarks, each beside its budget
	@for benchmark in rest pipeline lookup hostile save daemon_cost; do \
		echo "== $$benchmark"; $(BIN)/python benchmarks/$$benchmark.py || exit 1; \
	done
	@for what in grouped pipeline winner lanes disturbance; do \
		echo "== gpu $$what"; $(BIN)/python benchmarks/gpu.py $$what || exit 1; \
	done
