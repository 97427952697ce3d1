# Everything a newcomer types. `make env` creates .venv; the other targets use it.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
ARGS   ?=

.PHONY: env tune test lint docs clean

env: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[tune,dev]"
	touch $(STAMP)

# The quick sweep on the bundled model; `make tune ARGS=--resume` goes on where it stopped.
tune: env
	$(BIN)/strata tune $(ARGS)

# A process a core, each with one thread; a file's tests stay together and share what they load.
test: env
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile $(ARGS)

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# docs/reference.md from the commands' own help.
docs: env
	$(BIN)/python docs/generate_reference.py

clean:
	rm -rf $(VENV) build *.egg-info
