# The Stream-K zoo. Every target that needs the environment builds it first; nothing is built twice.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTHONS := python3 python3.13 python3.12 python3.11
EXPERIMENTS ?= headline thread_sampled log_sampled atomic_order
PYTEST_ARGS ?=
MEASURE_ARGS ?=
REGRESSIONS_ARGS ?=
DIFF_ARGS ?=
EXPLORE_ARGS ?=
TRACED ?= v01 v04 v05 v08 v09 v10

# torch where there is no NVIDIA driver; with one, the current torch and the Triton that it brings.
CPU_TORCH := torch==2.13.0
CPU_TRITON := triton==3.9.0
HAS_DRIVER = [ -e /proc/driver/nvidia/version ] || command -v nvidia-smi >/dev/null || { ldconfig -p 2>/dev/null || true; } | grep -q 'libcuda\.so'

.PHONY: help setup test lint figures report measure regressions trace table explore diff goldens clean

help:  ## print the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/\1\t\2/' | while IFS=$$'\t' read -r name text; do printf '  make %-11s %s\n' "$$name" "$$text"; done

setup: $(STAMP)  ## make the environment in .venv (every other target does it too)

test: $(STAMP)  ## run the tests; without a GPU kernels run in Triton's interpreter
	@$(BIN)/python -m pytest -n auto --maxprocesses 8 $(PYTEST_ARGS)

lint: $(STAMP)  ## check style and format with ruff
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

figures: $(STAMP)  ## draw every figure from the committed measurements
	@$(BIN)/python -m figures

report: $(STAMP)  ## write figures/report.html, one page with everything; needs no network
	@$(BIN)/python -m figures.report

measure: $(STAMP)  ## run the committed experiments on this machine's GPU; EXPERIMENTS="headline …" picks some
	@$(HAS_DRIVER) || { echo 'make measure: no NVIDIA driver was found, and nothing but a GPU can be measured. "make figures" draws the committed measurements.' >&2; exit 2; }
	@for name in $(EXPERIMENTS); do $(BIN)/python -m experiments run experiments/$$name.yaml $(MEASURE_ARGS); done

trace: $(STAMP)  ## record the committed timelines on this machine's GPU; TRACED="v04 …" picks variants
	@for name in $(TRACED); do \
	  $(BIN)/python -m variants trace $$name --m 1536 --n 1792 --k 6016; \
	  $(BIN)/python -m variants trace $$name --m 256 --n 512 --k 32768 --block 64x64x64; \
	done

explore: $(STAMP)  ## search small launches of every variant for races, hangs and wrong sums; compare with the cards
	@$(BIN)/python -m variants explore $(EXPLORE_ARGS)

regressions: $(STAMP)  ## ask the thread's claims again on this machine's GPU; without one, print the committed verdicts
	@if $(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then $(BIN)/python -m experiments regressions $(REGRESSIONS_ARGS); \
	else echo 'no GPU that PyTorch can use was found: these are the committed verdicts'; $(BIN)/python -m experiments claims; fi

table: $(STAMP)  ## rewrite README.md's generated part from cards and committed measurements
	@$(BIN)/python -m figures.readme

diff: $(STAMP)  ## compare two variants down to the machine code, no GPU needed: make diff A=v05 B=v06; DIFF_ARGS="--level sass"
	@[ -n "$(A)" ] && [ -n "$(B)" ] || { echo 'make diff: say which two, for example make diff A=v05 B=v06' >&2; exit 2; }
	@$(BIN)/python -m variants diff '$(A)' '$(B)' $(DIFF_ARGS)

goldens: $(STAMP)  ## compile every kernel and compare with the committed tables; ACCEPT=1 takes what is found, VERSION=all every Triton
	@$(BIN)/python -m variants goldens $(if $(VERSION),--triton $(VERSION)) $(if $(ACCEPT),--accept)

clean:  ## remove the environment and every cache
	@rm -rf $(VENV) .cache .pytest_cache .ruff_cache .hypothesis build *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Torch first and alone, so that nothing else decides which Triton comes; what it brought is then held fixed.
$(STAMP): pyproject.toml
	@python=; for candidate in $(PYTHON) $(PYTHONS); do \
	  if $$candidate -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then python=$$candidate; break; fi; \
	done; \
	if [ -x $(BIN)/python ] && $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then :; \
	elif [ -n "$$python" ]; then echo "making $(VENV) with $$($$python --version)"; $$python -m venv --clear $(VENV); \
	else echo 'make: no Python 3.11 or later with the venv module was found (tried $(PYTHON) $(PYTHONS)): install one, or say make PYTHON=/path/to/python' >&2; exit 2; fi
	@torch='$(CPU_TORCH)'; if $(HAS_DRIVER); then torch=torch; fi; \
	  echo "installing $$torch"; $(BIN)/python -m pip install --quiet "$$torch"
	@$(BIN)/python -m pip show --quiet triton 2>/dev/null || $(BIN)/python -m pip install --quiet '$(CPU_TRITON)'
	@$(BIN)/python -m pip freeze | grep -E '^(torch|triton)==' >$(VENV)/constraints.txt; cat $(VENV)/constraints.txt
	@if grep -qE '^triton==3\.6\.' $(VENV)/constraints.txt; then echo 'numpy<2.4' >>$(VENV)/constraints.txt; fi
	@echo 'installing what pyproject.toml names'; $(BIN)/python -m pip install --quiet --constraint $(VENV)/constraints.txt --editable '.[dev]'
	@touch $@
