# One entry for everything. `make` alone prints this list.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := protos format services/runtime services/node services/nameserver services/broker services/offset client
EDITABLE := $(foreach package,$(PACKAGES),-e ./$(package))

.PHONY: help cluster setup check test demo expansion bench soak protos format clean

help:  ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(VENV)/.installed: constraints.txt requirements-dev.txt $(foreach package,$(PACKAGES),$(package)/pyproject.toml)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Rockoon needs Python 3.11 or newer; set PYTHON=python3.x"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing Rockoon and its tools into $(VENV) (first run only)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt setuptools
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation -c constraints.txt $(EDITABLE) -r requirements-dev.txt
	@touch $@

# Half a gigabyte that a cluster does not need.
$(VENV)/.installed-spark: $(VENV)/.installed spark/pyproject.toml
	@echo "installing Spark, for its tests, into $(VENV) (first run only)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation -c constraints.txt -e "./spark[java]"
	@touch $@

cluster: $(VENV)/.installed

setup: $(VENV)/.installed-spark  ## a virtual environment with everything in it

check: setup  ## formatting, lint, types, layering, generated code
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/generate_protos.py --check

test: setup  ## every test that a fresh machine can run
	$(BIN)/python -m pytest

soak: setup  ## the long random tests: kills, recovery, bad input
	$(BIN)/python -m pytest -m soak -o addopts="-ra --strict-markers --import-mode=importlib" --timeout 3600

demo: cluster  ## a real cluster carries real messages, survives a kill, and explains where consumers start
	@$(BIN)/python -m tools.demo $(if $(FILE),--file "$(FILE)")

expansion: cluster  ## every way a topic can grow under a group, and what the group misses; writes docs/expansion.md
	@$(BIN)/python -m tools.expansion

bench: cluster  ## throughput, latency, recovery time and memory, as ratios of one run
	@$(BIN)/python -m tools.bench

protos: cluster  ## generate Python from the .proto files
	$(BIN)/python tools/generate_protos.py

format: cluster  ## let ruff rewrite what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## remove the environment and caches
	rm -rf $(VENV) .demo .bench .pytest_cache .mypy_cache .ruff_cache
