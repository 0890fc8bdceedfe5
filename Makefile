# Works on a machine with nothing but python3 and make: scripts/bootstrap.py brings the rest, all of it locked.
#   make demo   install, fetch a real model, generate plain and drafted, show both
#   make test   install, then every check and test there is

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
export SPECFRAME_VENV := $(abspath $(VENV))

# Small models gain nothing from more threads than cores, and two test workers share the cores.
PYTEST_WORKERS ?= 2
PYTEST_ARGS    ?=
BENCH_MODEL    ?= smollm2-135m
BENCH_ARGS     ?= --fetch --parts all

# Branch coverage below which `make test` fails, in percent.
COVERAGE_CORE ?= 97
COVERAGE_ALL  ?= 95

.DEFAULT_GOAL := help
.PHONY: help demo test lint format types layers docs dist changelog pytest coverage sweep bench lock venv venv-demo clean

help:  ## show this
	@sed -n 's/^\([a-z-]*\): .*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

demo: $(if $(NATIVE),venv,venv-demo)  ## fetch a real model and compare plain with drafted generation on it (NATIVE=1: on a native build)
	$(BIN)/specframe pull smollm2-135m
ifneq ($(NATIVE),)
	$(BIN)/specframe runtime build
endif
	$(BIN)/python scripts/demo.py

test: lint types layers docs coverage  ## every check and every test

lint: venv  ## style and formatting
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/python scripts/lock.py --check

format: venv  ## apply the formatter and the safe fixes
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

types: venv  ## mypy --strict
	$(BIN)/mypy

layers: venv  ## imports point downwards only
	$(BIN)/lint-imports

docs: venv  ## build the documentation; a broken link is an error
	$(BIN)/zensical build --clean --strict

pytest: venv  ## the tests alone, e.g. make pytest PYTEST_ARGS="-k stop -x"
	$(BIN)/pytest $(PYTEST_ARGS)

# llama.cpp is built from source as a part of the tests; on a machine that cannot, they say so and do without.
ifeq ($(shell command -v c++ || command -v g++ || command -v clang++),)
UNBUILT  = -m "not build and not sweep"
WITHOUT := NOT TESTED: the native build needs a C++ compiler (apt install g++).
endif

coverage: venv  ## the tests with branch coverage
	@$(if $(WITHOUT),echo "$(WITHOUT)",:)
	@rm -f .coverage .coverage.*
	$(BIN)/pytest -n $(PYTEST_WORKERS) --dist loadfile --no-loadscope-reorder --cov --cov-report= $(UNBUILT) $(PYTEST_ARGS)
	$(BIN)/coverage report --fail-under=$(COVERAGE_ALL)
	$(BIN)/coverage report --include='specframe/core/*' --fail-under=$(COVERAGE_CORE)

sweep: venv  ## the exhaustive tests that `make test` leaves out; an hour or more
	$(BIN)/pytest -n $(PYTEST_WORKERS) -m sweep $(PYTEST_ARGS)

bench: venv  ## measure strategies against plain decoding and the server of llama.cpp
	$(BIN)/specframe bench $(BENCH_MODEL) $(BENCH_ARGS)

dist: venv  ## build the source distribution and the wheel
	$(BIN)/python -m hatchling build -t sdist -t wheel -d dist

changelog: venv  ## preview the next section of CHANGELOG.md
	$(BIN)/towncrier build --draft --version NEXT

lock: venv  ## resolve the dependencies anew and write uv.lock and requirements/
	$(BIN)/python scripts/lock.py

venv:
	@$(PYTHON) scripts/bootstrap.py dev

venv-demo:
	@$(PYTHON) scripts/bootstrap.py demo

clean:  ## remove everything that was built
	rm -rf $(VENV) build dist site .cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .coverage .coverage.*
