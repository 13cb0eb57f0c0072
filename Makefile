# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ITEM ?= 0

EXTRAS := dev,docs,hf,eval,experiments,lm-eval
# Most modules are never imported, so Python compiles the others when it needs them.
INSTALL := -m pip install --quiet --disable-pip-version-check --no-compile

.PHONY: demo test pytest check format docs constraints dist sbom clean

demo: $(VENV)/.installed
	$(BIN)/unmask compare --task mini-gsm8k,mini-math,mini-humaneval --item $(ITEM)
	mkdir -p build
	$(BIN)/unmask generate "Solve the equation: 3x + 5 = 20." --trace build/demo.jsonl
	$(BIN)/unmask trace build/demo.jsonl --html build/demo.html

# The type check takes one core for a minute, so it runs beside the tests.
test: $(VENV)/.browser
	@$(MAKE) --no-print-directory --jobs 2 check pytest

pytest: $(VENV)/.browser
	$(BIN)/pytest -q -n 3

check: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The documentation as a site, built offline: open build/site/index.html.
docs: $(VENV)/.installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Packages without a wheel are built with the pinned tools of the environment, not with the newest ones.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(INSTALL) --constraint constraints.txt torch hatchling editables setuptools
	$(BIN)/python $(INSTALL) --constraint constraints.txt --no-build-isolation --editable '.[$(EXTRAS)]'
	touch $@

$(VENV)/.browser: $(VENV)/.installed
	$(BIN)/python tools/browser.py
	touch $@

# The newest versions of all packages, in a fresh environment.
constraints:
	rm -rf build/constraints
	$(PYTHON) -m venv build/constraints
	build/constraints/bin/python $(INSTALL) torch hatchling editables setuptools
	build/constraints/bin/python $(INSTALL) --no-build-isolation --editable '.[$(EXTRAS)]'
	build/constraints/bin/python tools/constraints.py > build/constraints.txt
	mv build/constraints.txt constraints.txt
	rm -rf build/constraints

# All files of a release: source, wheel, and the list of the packages that it was tested with (CycloneDX).
dist: sbom
	$(BIN)/python -m hatchling build --directory dist

sbom: $(VENV)/.installed
	mkdir -p dist
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --mc-type library --output-reproducible \
		--output-file dist/unmask-$$($(BIN)/python -c 'import unmask; print(unmask.__version__)').cdx.json $(BIN)/python

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build
