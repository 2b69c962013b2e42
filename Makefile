# make demo     sets up .venv and evaluates four kernels of one problem on the CPU
# make install  sets up .venv with the package alone; EXTRAS=cuda,serve adds extras (docs/install.md)
# make test     sets up .venv with the development tools, then lints and tests; WORKERS is the number of test processes
# make all      runs all cases of tables of one kind, of which `make test` has a sample
# make doors    runs the tests of each foreign framework in an environment of its own (docs/frameworks.md); DOORS names some
# make cluster  runs all tests of evaluations on a Ray cluster on this machine, of which `make test` has the core (docs/scaling.md)
# make emulated runs all tests of emulated GPUs, of which `make test` has a sample; needs nvcc (docs/emulator.md)
# make limits   runs tests of gangs and candidates as on a machine without bubblewrap
# make site     builds the documentation into site/, without the network
# make mutants  judges every reference with one mistake, and every expert without each of its synchronisations; takes hours
# make smoke    trains a tiny model on the CPU: export, SFT, GRPO, evaluation (docs/training.md)
#
# Needs Python >= 3.11 with venv, a C++ compiler and, on a GPU machine, nvcc. PYTHON chooses the interpreter.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

# Files of packages that no part of pkb-gym imports, as a regular expression.
RARELY_IMPORTED := /transformers/(exporters/|pipelines/|models/(?!auto/|llama/|qwen3/))|/ray/(data|llm|rllib|serve|train|tune)/$(strip \
    )|/torch/(_inductor|_vendor|testing/_internal)/|/sympy/(codegen|combinatorics|physics|polys/benchmarks|stats|vector)/$(strip \
    )|/numpy/(distutils|f2py)/|/openai/(resources/(?!chat/)[^/]+|types/(admin|beta))/|/pygments/lexers/[a-z]$(strip \
    )|/(backrefs|fontTools|mypy|mypyc|networkx|pre_commit|pymdownx|torchgen|virtualenv)/

EXTRAS ?=
WORKERS ?= 2

.PHONY: install all demo doors cluster emulated limits mutants smoke test pytest lint format site clean

install: $(BIN)/python
	$(PIP) --no-compile --editable '.$(if $(EXTRAS),[$(EXTRAS)])'
	@# pip would compile on one core. Some packages hold templates that are no Python: those are no errors.
	@$(BIN)/python -m compileall -qq -j 0 -x '/tests?/|$(RARELY_IMPORTED)' $(VENV)/lib || true

demo: $(VENV)/.installed
	$(BIN)/pkb demo

smoke: $(VENV)/.installed-dev
	$(BIN)/python -m pkb_gym.training.smoke --output runs/smoke

doors: $(VENV)/.installed-dev
	$(BIN)/python -m tests.doors $(DOORS)

all: $(VENV)/.installed-dev
	PKB_TEST_ALL=1 $(MAKE) pytest

cluster: $(VENV)/.installed-dev
	PKB_TEST_CLUSTER=1 $(BIN)/python -m pytest tests/cluster benchmarks/tests/test_ray_load.py

emulated: $(VENV)/.installed-dev
	PKB_TEST_EMULATED=1 $(BIN)/python -m pytest tests/engine/emulated emulator/tests tests/kernels \
	  tests/training/evaluation/test_compile_farm.py

limits: $(VENV)/.installed-dev
	PATH="$(CURDIR)/tests/without_bubblewrap:$$PATH" $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile \
	  tests/engine/gangs \
	  tests/engine/debugging/test_debugger.py::$(strip \
	  )test_the_address_sanitizer_names_the_line_that_writes_behind_an_output tests/engine/rankside/test_leader.py

mutants: $(VENV)/.installed-dev
	PKB_TEST_MUTANTS=1 $(BIN)/python -m pytest tests/engine/mutants tests/problems/test_estimators.py \
	  tests/problems/test_narrow_links.py tests/problems/test_wrong_solutions.py

test: $(VENV)/.installed-dev
	$(MAKE) --jobs=2 lint pytest

pytest: $(VENV)/.installed-dev
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@# Tests beside it have deadlines.
	nice -n 19 $(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	nice -n 19 $(MAKE) --no-print-directory site

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

site: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

clean:
	rm -rf $(VENV) .venv-doors build dist site *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The files in .venv say when it was last brought in line with pyproject.toml and constraints.txt.
$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo 'Installing into $(VENV); torch is large, so this can take minutes.'
	$(MAKE) --no-print-directory install EXTRAS=
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo 'Installing into $(VENV); torch is large, so this can take minutes.'
	$(MAKE) --no-print-directory install EXTRAS=dev
	touch $(VENV)/.installed $@

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
