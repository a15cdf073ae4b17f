# `make test` and `make bench` are all a newcomer needs: each sets up what it misses.
SHELL := /bin/bash
.DEFAULT_GOAL := build

VENV ?= .venv
JOBS ?= $(shell nproc)
ARGS ?=
export VENV JOBS
export PYTHON

.PHONY: help setup build test test-kernels bench lint format example install clean distclean

help: ## say what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## (.*)/  make \1\t\2/' | expand -t 20

setup: ## install what is missing: system packages (as root), Python packages in .venv
	@scripts/setup.sh

build: setup ## build the library and put the Python package together in build/python
	@scripts/build.sh

test: setup ## build, then run all tests: C++, C++ under sanitizers, Python, installed packages
	@scripts/test.sh

test-kernels: build ## compile every GPU kernel that the planner chooses on the problem file (make test: a sample)
	@TCONV_TEST_ALL_KERNELS=1 ctest --test-dir build/release --output-on-failure --parallel $(JOBS) --timeout 3600 \
	  --no-tests=error --tests-regex "PlannedKernels|Emulated"

bench: build ## verify and time layers beside PyTorch, write build/bench.html; ARGS="..." is passed on (try ARGS=--help)
	@PYTHONPATH=build/python $(VENV)/bin/python -m tconv bench --pytorch both --training --html build/bench.html $(ARGS)

lint: setup ## check formats and lint C++ and Python
	@scripts/lint.sh

format: setup ## rewrite C++ and Python in the project's formats
	@scripts/lint.sh --fix

example: build ## install the C++ package to build/prefix, then build and run examples/cpp against it
	@scripts/example.sh

install: build ## install the C++ package to PREFIX
	@cmake --install build/release --component cpp $(if $(PREFIX),--prefix "$(PREFIX)")

clean: ## remove what was built
	rm -rf build

distclean: clean ## remove the Python environment too
	rm -rf .venv
