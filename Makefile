# Every target sets up what it needs in .venv on its first run and starts in seconds afterwards.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test test-slow lint types docs bench clean setup
.DEFAULT_GOAL := help

help:
	@echo "make demo       train the demo on real recordings (sets up .venv on the first run)"
	@echo "make test       run the tests        make test-slow   also the slow ones"
	@echo "make lint       ruff and mypy        make docs        build the documentation"
	@echo "make bench      run the benchmarks that fit in a few minutes"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# torch first and by its exact version: a range may resolve to a CUDA build.
$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "setting up $(VENV) (about two minutes on the first run)"
	$(PIP) torch==2.13.0 "numpy<2.4" setuptools
	$(PIP) --editable ".[dev]"
	# Its dependencies pin numpy below 2 and need a Fortran compiler; what we use of it needs neither.
	$(PIP) --no-deps escnn==1.0.11
	@touch $@

$(VENV)/.docs: $(VENV)/.dev
	$(PIP) --editable ".[docs]"
	@touch $@

setup: $(VENV)/.dev

demo: $(VENV)/.dev
	$(BIN)/manifoldnorm demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not gpu" tests

test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "slow and not gpu" tests

lint: $(VENV)/.dev types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# gnn/ and equivariant/ become subpackages only when installed, so an installed copy is what is checked.
types: $(VENV)/.dev
	@rm -rf build/typecheck
	$(PIP) --no-deps --no-build-isolation --target build/typecheck .
	cd build/typecheck && ../../$(BIN)/python -m mypy --config-file ../../pyproject.toml -p manifoldnorm

docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks

clean:
	rm -rf build dist runs docs/_build docs/gallery_built .pytest_cache .mypy_cache .ruff_cache
