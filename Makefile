# Two commands for a newcomer: `make demo` and `make test`. Both build the environment first.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
CONSTRAINTS = .ci/constraints.txt
READY = $(VENV)/.ready

.PHONY: demo test unit lint clean

$(READY): pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable '.[demo,dev]'
	touch $(READY)

demo: $(READY)
	$(BIN)/distilface demo --out runs/demo --overwrite

test: $(READY) lint
	$(BIN)/python -m pytest $(ARGS)

unit: $(READY)
	$(BIN)/python -m pytest tests/unit $(ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) runs build dist
