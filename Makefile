# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ITEM ?= 0

.PHONY: demo test check format clean

demo: $(VENV)/.installed
	$(BIN)/unmask compare --task mini-gsm8k,mini-math,mini-humaneval --item $(ITEM)
	mkdir -p build
	$(BIN)/unmask generate "Solve the equation: 3x + 5 = 20." --trace build/demo.jsonl
	$(BIN)/unmask trace build/demo.jsonl --html build/demo.html

test: check
	$(BIN)/pytest -q -n 2

check: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,hf,eval,experiments,lm-eval]'
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build
