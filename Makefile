# `make help` lists what there is. Everything runs inside .venv, which `env` creates from the pins.
PROFILE ?= digits
PYTHON ?= python3
DATA ?= digits
MINUTES ?= 15
VENV_PYTHON := .venv/bin/python

.DEFAULT_GOAL := help
.PHONY: help env book your-data test lint reference bench stress clean

help: ## list all targets
	@echo "make TARGET [PROFILE=digits]"
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  \1|\2/p' Makefile | awk -F'|' '{ printf "%-12s %s\n", $$1, $$2 }'

env: ## create .venv from the pinned requirements (done once; other targets call it)
	@$(PYTHON) book/environment.py

book: env ## run the notebooks whose inputs changed, render the book [SCHEDULER=tcp://HOST:PORT]
	@$(VENV_PYTHON) book/build.py --profile $(PROFILE) $(if $(SCHEDULER),--scheduler $(SCHEDULER))

your-data: env ## the page on your images: DATA=folder:DIR (or npz:FILE, csv:FILE) MINUTES=15 [SIZE=64]
	@$(VENV_PYTHON) book/own_data.py "$(DATA)" "$(MINUTES)" $(SIZE)

test: env ## notebooks against their reference outputs, unit tests, published numbers
	@$(VENV_PYTHON) book/reference.py check
	@OMP_NUM_THREADS=1 $(VENV_PYTHON) -m pytest -q --published

lint: env ## ruff (style, docstrings, format) and mypy
	@$(VENV_PYTHON) -m ruff check .
	@$(VENV_PYTHON) -m ruff format --check .
	@$(VENV_PYTHON) -m mypy

reference: env ## rewrite tests/reference from the executed digits notebooks
	@$(VENV_PYTHON) book/reference.py write

bench: env ## run every benchmark in benchmarks/, in its --quick form if it has one
	@set -e; for name in $(basename $(notdir $(wildcard benchmarks/[a-z]*.py))); do \
	  quick=$$(grep -qs '"--quick"' benchmarks/$$name.py && echo --quick || true); \
	  echo "== benchmarks/$$name.py $$quick"; OMP_NUM_THREADS=1 $(VENV_PYTHON) -m benchmarks.$$name $$quick; \
	done

stress: env ## kill training, surgery and writing 200 times at random moments; fill a disk (ten minutes)
	@OMP_NUM_THREADS=1 $(VENV_PYTHON) -m pytest -q -m slow

clean: ## remove build/ ; trained runs (runs/) and .venv stay
	@rm -rf build
	@echo "Removed build/. Kept runs/ (trained runs) and .venv; delete them by hand to start from nothing."
