# One command is enough on a machine with Python and git: each target makes its own environment. Those that need other
# packages than `make test` are in the table of tools/suites.py; ARGS="-k words" is passed on to their pytest, and
# NEWEST=1 leaves out what repeats a suite with older packages.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# two at a time: most tests wait for something
PARALLEL := -n 2 --dist worksteal
PYTEST := $(BIN)/python -X dev -m pytest -q $(PARALLEL)
SHELL := bash
SUITE := @$(PYTHON) tools/suites.py
SUITES_IN_TABLE := $(shell $(PYTHON) tools/suites.py --names)
# where the coverage of the core and the engine comes from: measuring takes time
MEASURED := tests/spec tests/unit tests/machine tests/cases tests/plain tests/outgoing
# what has a target of its own
APART := $(addprefix --ignore ,tests/mutants tests/tutorial $(shell $(PYTHON) tools/suites.py --folders))
# the ids of tests that fail now and then and are being mended, one to a line; `make test` leaves them out
FLAKY := .ci/flaky
SET_ASIDE := grep -sE '^tests/' $(FLAKY)

.PHONY: $(SUITES_IN_TABLE) $(shell sed -nE 's/^([a-z0-9-]+):.*/\1/p' Makefile)
.DEFAULT_GOAL := help

help: ## list the targets
	@{ cat $(MAKEFILE_LIST); $(PYTHON) tools/suites.py --list; } | grep -E '^[a-z0-9-]+:.*##' | sed -E 's/:.*## ?/\t/' | expand -t 25

$(SUITES_IN_TABLE):
	$(SUITE) $(if $(NEWEST),--newest) $@ $(ARGS)

dev: ## make the environment for changes, and say how to run one test
	$(SUITE) --environment $(VENV) dev check
	@echo "one test:   $(BIN)/python -X dev -m pytest tests/spec/test_g06_bounded.py -k second_stop"
	@echo "lint:       $(BIN)/ruff check --fix . && $(BIN)/ruff format ."
	@echo "types:      $(BIN)/mypy"

DEMO_PORT ?= 8420

demo: ## serve agents that show every case of a stop; prints an address and what to try
	@echo "one moment: the first time, what the demo needs is installed into .venv-demo"
	$(SUITE) --environment .venv-demo server cli client sqlite
	@.venv-demo/bin/stoppable serve --demo --port $(DEMO_PORT)

# Python 3.11 fails a thread at its start now and then if two begin to be traced at once: "Cannot install a trace
# function while another trace function is being installed". Without coverage (test-versions) it remains an error.
TRACED := -W "ignore:Exception ignored in thread started by:pytest.PytestUnraisableExceptionWarning"

test: ## run the tests, with coverage of the core and the engine
	$(SUITE) --environment $(VENV) dev
	@$(SET_ASIDE) | sed 's/^/--deselect=/' >$(VENV)/deselected; $(SET_ASIDE) | sed 's/^/set aside in $(subst /,\/,$(FLAKY)): /'
	$(BIN)/coverage erase
	$(BIN)/python -m coverage run -m pytest -q $(PARALLEL) $(TRACED) $(MEASURED) @$(VENV)/deselected
	$(BIN)/python -m pytest -q $(PARALLEL) $(APART) $(addprefix --ignore ,$(MEASURED)) @$(VENV)/deselected
	$(BIN)/coverage combine -q
	$(BIN)/coverage report --include 'src/stoppable/_core/*' --fail-under 100
	$(BIN)/coverage report --include 'src/stoppable/_engine/*' --fail-under 95

test-flaky: ## run the tests that are set aside in .ci/flaky TIMES=… times (20): all must pass before one is taken off the list
	$(SUITE) --environment $(VENV) dev
	@$(SET_ASIDE) >$(VENV)/set-aside; if ! test -s $(VENV)/set-aside; then echo "no test is set aside in $(FLAKY)"; exit; fi; \
		failures=0; for time in $$(seq $(or $(TIMES),20)); do $(PYTEST) @$(VENV)/set-aside || failures=$$((failures + 1)); done; \
		echo "$$failures of $(or $(TIMES),20) times failed"; test $$failures = 0

test-instrumented: ## run the specification, the unit tests and the cases with instrument() on
	$(SUITE) --environment $(VENV) dev
	STOPPABLE_TEST_INSTRUMENTED=1 $(PYTEST) tests/spec tests/unit tests/cases

# what differs from one Python to the next: the specification, the machine, and a part of everything else
ELSEWHERE := tests/spec tests/machine tests/unit tests/stores/test_memory.py tests/stores/test_sqlite.py \
	tests/supervisor/test_supervisor.py tests/server/test_stopping.py tests/client/test_client.py tests/cli/test_commands.py

VERSIONS ?= $(if $(NEWEST),3.13,3.11 3.12 3.13)

test-versions: ## run the specification and a part of the rest on every other Python from 3.11 to 3.13 that is installed
	@set -e; for version in $(VERSIONS); do \
		if $(PYTHON) -c "import sys; sys.exit(sys.version_info[:2] != ($${version/./, }))"; then continue; fi; \
		found=; for python in python$$version $$HOME/.pyenv/versions/$$version.*/bin/python; do \
			if $$python -c '' 2>/dev/null; then found=$$python; break; fi; done; \
		if [ -z "$$found" ]; then echo "python$$version is not installed: skipped"; continue; fi; \
		$(MAKE) --no-print-directory test-version PYTHON=$$found VENV=.venv-$$version; \
	done

test-version:
	$(SUITE) --environment $(VENV) dev
	$(PYTEST) $(ELSEWHERE)

test-mutants: ## see that the tests catch deliberate mistakes; some of them, chosen by the commit or SEED=… (printed)
	$(SUITE) --environment $(VENV) dev
	@seed=$(or $(SEED),$$(git rev-parse --short HEAD 2>/dev/null || echo $$RANDOM)); echo "mutants are chosen by SEED=$$seed"; \
		STOPPABLE_MUTANTS=$(or $(COUNT),24):$$seed $(BIN)/python -X dev -m pytest -q tests/mutants  # two at a time by itself

test-mutants-all: ## see that the tests catch every deliberate mistake
	$(SUITE) --environment $(VENV) dev
	$(BIN)/python -X dev -m pytest -q tests/mutants

flakes: ## run the tests that changed since BASE=… twenty times beside two busy processes, and all of them three times
	$(SUITE) --environment $(VENV) dev
	PYTHON=$(BIN)/python .ci/flakes $(APART)
	for time in 1 2 3; do $(MAKE) --no-print-directory test || exit 1; done

# what their tests need is in groups of their own; the paths there are those of a checkout
UPSTREAM := .venv-langgraph-upstream
UPSTREAM_PACKAGES := langgraph langgraph-prebuilt langchain
test-langgraph-upstream: ## run the tests of langgraph, langgraph-prebuilt and langchain plain and with every graph stoppable, all or SUITES="langchain …"; writes bench/results/langgraph-upstream.md
	$(SUITE) --environment $(UPSTREAM)
	@$(UPSTREAM)/bin/python -m tests.host_suites.sdists $(UPSTREAM_PACKAGES)
	@VIRTUAL_ENV=$(abspath $(UPSTREAM)) $(UPSTREAM)/bin/uv pip install -q --no-sources pytest-timeout \
		$(UPSTREAM_PACKAGES:%=--group $(UPSTREAM)/%/pyproject.toml:test)
	$(UPSTREAM)/bin/python -m tests.adapters.langgraph.upstream $(SUITES)

# Debian installs Pythons without their tests: one that has them is preferred
test-host: ## run the tests of CPython, anyio, requests and httpx with and without instrument(), all or SUITES="anyio …"; writes bench/results/host-suites.md
	@set -e; pythons=(); for version in 3.11 3.13; do \
		found=; for python in python$$version $$HOME/.pyenv/versions/$$version.*/bin/python; do \
			if $$python -c '' 2>/dev/null; then found=$${found:-$$python}; else continue; fi; \
			if $$python -c 'import test.test_threading' 2>/dev/null; then found=$$python; break; fi; done; \
		if [ -z "$$found" ]; then echo "THE HOST WAS NOT TESTED on Python $$version: it is not installed"; continue; fi; \
		$(MAKE) --no-print-directory host-environment PYTHON=$$found VENV=.venv-host-$$version; \
		pythons+=(.venv-host-$$version/bin/python); \
	done; \
	if [ $${#pythons[@]} != 0 ]; then $(PYTHON) -m tests.host_suites.run "$${pythons[@]}" $(if $(SUITES),--only $(SUITES)); fi

host-environment:
	$(SUITE) --environment $(VENV)
	@$(VENV)/bin/python -m tests.host_suites.sdists anyio requests httpx
	@VIRTUAL_ENV=$(abspath $(VENV)) $(VENV)/bin/uv pip install -q '$(VENV)/anyio[trio]' --group $(VENV)/anyio/pyproject.toml:test \
		'$(VENV)/requests[socks]' httpbin pytest-httpbin pytest-mock '$(VENV)/httpx[brotli,cli,http2,socks,zstd]' chardet trustme uvicorn

test-tutorial: ## type the tutorial, from a clone in an empty environment to its end
	$(SUITE) --environment $(VENV) dev
	$(BIN)/python -m pytest -q tests/tutorial

docs: ## build the documentation as a site, which loads nothing from elsewhere; writes site/
	$(SUITE) --environment .venv-docs docs
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --quiet --strict

bench-cli: ## measure what it costs to start a command; writes bench/results/cli.md
	$(SUITE) --environment $(VENV) dev
	$(BIN)/python bench/cli.py

bench-frameworks: ## stop unmodified agents of nine frameworks, with the newest versions; writes bench/results/frameworks.md
	@for environment in $$($(PYTHON) tools/suites.py --compared); do $(PYTHON) tools/suites.py --environment $$environment \
		|| { echo "$$environment COULD NOT BE INSTALLED"; rm -rf $$environment; }; done
	$(PYTHON) bench/frameworks.py

screenshots: ## make the pictures of the docs again
	$(SUITE) --environment .venv-services
	SCREENSHOTS=docs/images .venv-services/bin/python -m pytest -q tests/browser/test_screenshots.py tests/browser/test_user_code_screenshots.py

test-ui-random: ## press Stop in the web UI at random, 200 times (TIMES=…, SEED=…), with faults of the server: no press may send more than it said
	$(SUITE) --environment .venv-services
	STOPPABLE_UI_SEQUENCES=$(or $(TIMES),200) STOPPABLE_UI_SEED=$(or $(SEED),$$RANDOM) .venv-services/bin/python -m pytest -q -n 2 -s tests/browser/test_random.py

screens: ## make the pictures of the command line again, in a real terminal
	$(SUITE) --environment $(VENV) dev
	$(BIN)/python -m tests.cli.screens

check: check-ui ## lint, types, layers
	$(SUITE) --environment $(VENV) dev check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports
	$(BIN)/python tools/twins.py --check
	$(MAKE) --no-print-directory check-public-types

twins: ## make the blocking supervisor and client from the async ones
	$(SUITE) --environment $(VENV) dev check
	$(BIN)/python tools/twins.py

# Adapters extend classes of frameworks: their packages are here, without what those need, which takes seconds.
TYPES := .venv-types
EXTENDED := a2a-sdk agent-framework-core autogen-agentchat autogen-core mcp mcp-types openai-agents openhands-sdk pydantic pydantic-core pydantic-ai-slim
REPORT := $(TYPES)/report.txt

check-public-types: ## see that pyright knows the type of every public name
	@test -x $(TYPES)/bin/python || $(BIN)/uv venv -q --python $(BIN)/python $(TYPES)
	@VIRTUAL_ENV=$(abspath $(TYPES)) $(BIN)/uv pip install -q -e '.[all,metrics,postgres]'
	@VIRTUAL_ENV=$(abspath $(TYPES)) $(BIN)/uv pip install -q --no-deps --python-version 3.12 $(EXTENDED)
	@PATH="$(abspath $(TYPES))/bin:$$PATH" $(BIN)/pyright --verifytypes stoppable --ignoreexternal >$(REPORT) \
		|| { grep -B 1 -A 3 ' - error:' $(REPORT); tail -3 $(REPORT); exit 1; }
	@grep 'Type completeness score' $(REPORT)

check-ui: ## check the types of the web UI, which is plain JavaScript; needs npm
	$(SUITE) --npm typescript@5
	@if test -x .venv-node/node_modules/.bin/tsc; then .venv-node/node_modules/.bin/tsc -p tests/browser/tsconfig.json; \
	else echo "THE TYPES OF THE WEB UI WERE NOT CHECKED: npm is missing"; fi

model: ## model-check the control plane, and deliberate mistakes in it; needs spin and a C compiler
	$(PYTHON) models/check.py

soak: ## start, stop, kill and freeze at random for five minutes (SECONDS=…, SEED=…), and check what must hold
	$(SUITE) --environment $(VENV) dev
	$(BIN)/python tests/faults/soak.py --seconds $(or $(SECONDS),300) $(if $(SEED),--seed $(SEED))

faults: ## kill, freeze and cut off replicas under load (STOPS=…, SEED=…): no stop that was answered may be lost
	$(SUITE) --environment .venv-services
	.venv-services/bin/python tests/faults/campaign.py --store sqlite --stops $(or $(STOPS),2000) $(if $(SEED),--seed $(SEED))
	.venv-services/bin/python tests/faults/campaign.py --store postgres --stops $(or $(STOPS),2000) $(if $(SEED),--seed $(SEED))
	.venv-services/bin/python tests/faults/signals.py
	.venv-services/bin/python tests/faults/busy_loop.py

faults-kill: ## kill -9 replicas under load, 300 times on SQLite and 150 times on Postgres, and look for lost stops (SEED=…)
	$(SUITE) --environment .venv-services
	.venv-services/bin/python tests/faults/campaign.py --store sqlite --fault SIGKILL --times 100 $(if $(SEED),--seed $(SEED))
	.venv-services/bin/python tests/faults/campaign.py --store postgres --fault SIGKILL --times 50 $(if $(SEED),--seed $(SEED))

clean: ## remove the environments and caches
	rm -rf dist models/build site .venv .venv-* .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage*
