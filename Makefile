# Every target that runs Python makes the environment first, if needed.
#   PYTHON=python3.11      the interpreter that makes the environment
#   VENV=$$CONDA_PREFIX     an existing environment instead of .venv (conda or virtual)
#   CONSTRAINTS=file       passed to pip as -c
PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?=
DEVICE ?= cpu
THREADS ?= $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
SUITE ?=
N ?=
SEEDS ?=
ARGS ?=

PY := $(VENV)/bin/python
STAMP := $(VENV)/.mergecal-$(shell cksum < pyproject.toml | cut -d' ' -f1)
SWEEP = $(PY) -m benchmarks run $@ --device $(DEVICE) --threads $(THREADS) \
	$(if $(SUITE),--suite $(SUITE)) $(if $(N),--n $(N)) $(if $(SEEDS),--seeds $(SEEDS)) $(ARGS)

.DEFAULT_GOAL := help
.PHONY: help install table-clip sample-efficiency drift runtime native smoke tune-featcal \
	tune-surgery figures publish test lint format clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(firstword $(MAKEFILE_LIST)) | sed -E 's/^([a-z-]+):.*## */  make \1\t/' | expand -t 26
	@echo "  variables: SUITE= N= SEEDS= DEVICE=cpu THREADS= ARGS= PYTHON=python3 VENV=.venv"

install: $(STAMP)  ## make .venv and install the project (other targets do this themselves)

$(STAMP): pyproject.toml
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (several minutes the first time) ..."
	$(PY) -m pip install --quiet --disable-pip-version-check $(if $(CONSTRAINTS),-c $(CONSTRAINTS)) -e ".[dev]"
	@rm -f $(VENV)/.mergecal-*
	@touch $@

table-clip: $(STAMP)  ## every merger with every calibrator on the CLIP suite: tables and figures
	@$(SWEEP)

sample-efficiency: $(STAMP)  ## accuracy against the size of the calibration set, with spread
	@$(SWEEP)

drift: $(STAMP)  ## feature drift block by block, its parts, and accuracy
	@$(SWEEP)

runtime: $(STAMP)  ## calibration time and memory, repeated; SEEDS= sets the repeats (an hour)
	@$(SWEEP)

native: $(STAMP)  ## Surgery and ProbSurgery on test images, as their authors ran them
	@$(SWEEP)

smoke: $(STAMP)  ## a few runs on the toy suite
	@$(SWEEP)

tune-featcal: $(STAMP)  ## the search for FeatCal's settings, on validation splits
	@$(SWEEP)

tune-surgery: $(STAMP)  ## the same for Surgery, ProbSurgery and ridge surgery
	@$(SWEEP)

figures: $(STAMP)  ## all tables and figures again, from the rows alone
	@$(PY) -m benchmarks report

publish: $(STAMP)  ## copy tables, figures and rows to results/embedded (needs a clean commit)
	@$(PY) -m benchmarks publish

test: $(STAMP)  ## the tests
	@$(PY) -m pytest $(ARGS)

lint: $(STAMP)  ## style and mistakes, by ruff
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .

format: $(STAMP)  ## rewrite the code in the project's format
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

clean:  ## remove results that can be made again (not results/embedded), caches and .venv
	rm -rf .venv results/runs results/tables results/figures results/rows.csv
	rm -rf .pytest_cache .ruff_cache .hypothesis *.egg-info build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
