# One command is enough on a machine with Python and git: each target makes its own environment.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# two at a time: most tests wait for something
PARALLEL := -n 2 --dist worksteal
PYTEST := $(BIN)/python -X dev -m pytest -q $(PARALLEL)
SHELL := bash
# where the coverage of the core and the engine comes from: measuring takes time
MEASURED := tests/spec tests/unit tests/machine tests/cases tests/plain tests/outgoing
# what has a target of its own
APART := --ignore tests/mutants --ignore tests/api --ignore tests/model_clients --ignore tests/frameworks --ignore tests/libraries --ignore tests/adapters/adk --ignore tests/adapters/a2a --ignore tests/adapters/langgraph --ignore tests/adapters/openhands --ignore tests/browser --ignore tests/tutorial --ignore tests/fleet
# the ids of tests that fail now and then and are being mended, one to a line; `make test` leaves them out
FLAKY := .ci/flaky
SET_ASIDE := grep -sE '^tests/' $(FLAKY)

.PHONY: help demo test test-flaky test-instrumented test-version test-versions test-mutants test-mutants-all flakes test-clients test-api test-frameworks test-libraries test-host host-environment test-adk test-a2a test-a2a-conformance test-a2a-conformance-with test-langgraph test-langgraph-upstream test-openhands test-openhands-with test-openhands-upstream test-fleet test-lowest test-ui test-tutorial docs bench-cli bench-fleet bench-frameworks framework-environment bench-openhands bench-ui screenshots screens check check-public-types check-ui model soak faults faults-kill bench clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

# what users can choose in pyproject.toml; every other name is one of its dependency groups
EXTRAS := a2a adk all cli client langgraph openhands postgres server sqlite
names = $(subst $(comma), ,$(1))

# $(call environment,directory,extras and groups,options): a fast installer, then the project with what is named
define environment
	@test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
	@test -x $(1)/bin/uv || $(1)/bin/python -m pip install -q --disable-pip-version-check uv
	@VIRTUAL_ENV=$(abspath $(1)) $(1)/bin/uv pip install -q $(3) \
		-e '.[$(subst $(space),$(comma),$(strip $(filter $(EXTRAS),$(call names,$(2)))))]' \
		$(addprefix --group ,$(filter-out $(EXTRAS),$(call names,$(2))))
endef

DEMO_PORT ?= 8420

demo: ## serve agents that show every case of a stop; prints an address and what to try
	@echo "one moment: the first time, what the demo needs is installed into .venv-demo"
	$(call environment,.venv-demo,server$(comma)cli$(comma)client$(comma)sqlite)
	@.venv-demo/bin/stoppable serve --demo --port $(DEMO_PORT)

test: ## run the tests, with coverage of the core and the engine
	$(call environment,$(VENV),dev)
	@$(SET_ASIDE) | sed 's/^/--deselect=/' >$(VENV)/deselected; $(SET_ASIDE) | sed 's/^/set aside in $(subst /,\/,$(FLAKY)): /'
	$(BIN)/coverage erase
	$(BIN)/python -m coverage run -m pytest -q $(PARALLEL) $(MEASURED) @$(VENV)/deselected
	$(BIN)/python -m pytest -q $(PARALLEL) $(APART) $(addprefix --ignore ,$(MEASURED)) @$(VENV)/deselected
	$(BIN)/coverage combine -q
	$(BIN)/coverage report --include 'src/stoppable/_core/*' --fail-under 100
	$(BIN)/coverage report --include 'src/stoppable/_engine/*' --fail-under 95

test-flaky: ## run the tests that are set aside in .ci/flaky TIMES=… times (20): all must pass before one is taken off the list
	$(call environment,$(VENV),dev)
	@$(SET_ASIDE) >$(VENV)/set-aside; if ! test -s $(VENV)/set-aside; then echo "no test is set aside in $(FLAKY)"; exit; fi; \
		failures=0; for time in $$(seq $(or $(TIMES),20)); do $(PYTEST) @$(VENV)/set-aside || failures=$$((failures + 1)); done; \
		echo "$$failures of $(or $(TIMES),20) times failed"; test $$failures = 0

test-instrumented: ## run the specification, the unit tests and the cases with instrument() on
	$(call environment,$(VENV),dev)
	STOPPABLE_TEST_INSTRUMENTED=1 $(PYTEST) tests/spec tests/unit tests/cases

# what differs from one Python to the next: the specification, the machine, and a part of everything else
ELSEWHERE := tests/spec tests/machine tests/unit tests/stores/test_memory.py tests/stores/test_sqlite.py \
	tests/supervisor/test_supervisor.py tests/server/test_stopping.py tests/client/test_client.py tests/cli/test_commands.py

test-versions: ## run the specification and a part of the rest on every other Python from 3.11 to 3.13 that is installed
	@set -e; for version in 3.11 3.12 3.13; do \
		if $(PYTHON) -c "import sys; sys.exit(sys.version_info[:2] != ($${version/./, }))"; then continue; fi; \
		found=; for python in python$$version $$HOME/.pyenv/versions/$$version.*/bin/python; do \
			if $$python -c '' 2>/dev/null; then found=$$python; break; fi; done; \
		if [ -z "$$found" ]; then echo "python$$version is not installed: skipped"; continue; fi; \
		$(MAKE) --no-print-directory test-version PYTHON=$$found VENV=.venv-$$version; \
	done

test-version:
	$(call environment,$(VENV),dev)
	$(PYTEST) $(ELSEWHERE)

test-mutants: ## see that the tests catch deliberate mistakes; some of them, chosen by the commit or SEED=… (printed)
	$(call environment,$(VENV),dev)
	@seed=$(or $(SEED),$$(git rev-parse --short HEAD 2>/dev/null || echo $$RANDOM)); echo "mutants are chosen by SEED=$$seed"; \
		STOPPABLE_MUTANTS=$(or $(COUNT),24):$$seed $(BIN)/python -X dev -m pytest -q tests/mutants  # two at a time by itself

test-mutants-all: ## see that the tests catch every deliberate mistake
	$(call environment,$(VENV),dev)
	$(BIN)/python -X dev -m pytest -q tests/mutants

flakes: ## run the tests that changed since BASE=… twenty times beside two busy processes, and all of them three times
	$(call environment,$(VENV),dev)
	PYTHON=$(BIN)/python .ci/flakes $(APART)
	for time in 1 2 3; do $(MAKE) --no-print-directory test || exit 1; done

test-clients: ## stop calls and streams of the openai and httpx clients, against a scripted model server
	$(call environment,.venv-clients,dev$(comma)clients)
	.venv-clients/bin/python -X dev -m pytest -q -n 2 --dist worksteal tests/model_clients
	$(call environment,.venv-openai1,dev,'openai>=1.60$(comma)<2')
	.venv-openai1/bin/python -X dev -m pytest -q tests/model_clients/test_unmodified.py -k openai
	$(call environment,.venv-openai3,dev,'openai>=3')
	.venv-openai3/bin/python -X dev -m pytest -q tests/model_clients/test_unmodified.py -k openai

test-api: ## hold the server to its OpenAPI document
	$(call environment,.venv-api,dev$(comma)api)
	.venv-api/bin/python -m pytest -q tests/api

test-frameworks: ## run the stop through real agent frameworks
	$(call environment,.venv-frameworks,dev$(comma)frameworks)
	.venv-frameworks/bin/python -m pytest -q tests/frameworks

test-adk: ## stop the agents of Google ADK on its own server, with the oldest version that is supported and the newest
	$(call environment,.venv-adk,dev$(comma)adk$(comma)adk-test$(comma)ui,--upgrade-package google-adk 'google-adk[a2a]')
	$(call environment,.venv-adk1,dev$(comma)adk$(comma)adk-test,'google-adk[a2a]==1.39.*')
	.venv-adk/bin/python -X dev -m pytest -q $(PARALLEL) tests/adapters/adk
	.venv-adk1/bin/python -X dev -m pytest -q $(PARALLEL) tests/adapters/adk

test-a2a: ## cancel tasks on servers of the A2A SDK, with its own client
	$(call environment,.venv-a2a,dev$(comma)a2a$(comma)a2a-stores,--upgrade-package a2a-sdk)
	.venv-a2a/bin/python -X dev -m pytest -q $(PARALLEL) tests/adapters/a2a

# the suites have an environment of their own: their messages and those of the SDK have the same names
test-a2a-conformance: ## run the public A2A conformance suites against the plain SDK, the adapter and `stoppable serve`: TCK=<clone of a2a-tck>; writes bench/results/a2a-conformance.md
	@if test -z "$(TCK)"; then echo "THE CONFORMANCE WAS NOT TESTED: say TCK=<clone of https://github.com/a2aproject/a2a-tck>, with its branches 1.0-dev and 0.3.x"; \
	else $(MAKE) --no-print-directory test-a2a-conformance-with; fi

test-a2a-conformance-with:
	$(call environment,.venv-a2a,dev$(comma)a2a$(comma)a2a-stores,--upgrade-package a2a-sdk)
	$(call environment,.venv-tck,)
	.venv-a2a/bin/python -m tests.adapters.a2a.upstream $(TCK) .venv-tck

test-langgraph: ## stop graphs of LangGraph, with the oldest version that is supported and the newest, and on its own server
	$(call environment,.venv-langgraph,dev$(comma)langgraph-test$(comma)ui,--upgrade-package langgraph --upgrade-package langchain)
	$(call environment,.venv-langgraph1,dev$(comma)langgraph-test,'langgraph==1.0.*' 'langgraph-prebuilt==1.0.8' 'langchain==1.0.*' 'langchain-mcp-adapters==0.2.0' 'mcp<2')
	$(call environment,.venv-langgraph-server,dev$(comma)langgraph-server)
	.venv-langgraph/bin/python -X dev -m pytest -q $(PARALLEL) tests/adapters/langgraph
	.venv-langgraph1/bin/python -X dev -m pytest -q $(PARALLEL) tests/adapters/langgraph
	.venv-langgraph-server/bin/python -m pytest -q tests/adapters/langgraph/test_dev_server.py

# what their tests need is in groups of their own; the paths there are those of a checkout
UPSTREAM := .venv-langgraph-upstream
UPSTREAM_PACKAGES := langgraph langgraph-prebuilt langchain
test-langgraph-upstream: ## run the tests of langgraph, langgraph-prebuilt and langchain plain and with every graph stoppable, all or SUITES="langchain …"; writes bench/results/langgraph-upstream.md
	$(call environment,$(UPSTREAM),langgraph-test,$(addprefix --upgrade-package ,$(UPSTREAM_PACKAGES)))
	@$(UPSTREAM)/bin/python -m tests.host_suites.sdists $(UPSTREAM_PACKAGES)
	@VIRTUAL_ENV=$(abspath $(UPSTREAM)) $(UPSTREAM)/bin/uv pip install -q --no-sources pytest-timeout \
		$(UPSTREAM_PACKAGES:%=--group $(UPSTREAM)/%/pyproject.toml:test)
	$(UPSTREAM)/bin/python -m tests.adapters.langgraph.upstream $(SUITES)

# the packages are large: compiled once, they are imported in a tenth of the time
test-openhands: ## interrupt the conversations of OpenHands, on its own server too; needs a Python from 3.12 up
	@found=; for python in $(PYTHON) python3.13 python3.12 $$HOME/.pyenv/versions/3.1[23].*/bin/python; do \
		if $$python -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; then found=$$python; break; fi; done; \
	if [ -z "$$found" ]; then echo "OPENHANDS WAS NOT TESTED: it needs Python 3.12 or newer, and none is installed"; \
	else $(MAKE) --no-print-directory test-openhands-with PYTHON=$$found; fi

test-openhands-with:
	$(call environment,.venv-openhands,dev$(comma)openhands$(comma)openhands-server,--compile-bytecode)
	.venv-openhands/bin/python -m pytest -q $(PARALLEL) tests/adapters/openhands

# the packages of OpenHands have no tests: they come from a checkout of its repository
test-openhands-upstream: ## run OpenHands' own tests of conversations plain and with the adapter, after `make test-openhands`: OPENHANDS=<checkout>; writes bench/results/openhands-upstream.md
	@if test -z "$(OPENHANDS)"; then echo "OPENHANDS' OWN TESTS WERE NOT RUN: say OPENHANDS=<checkout of its repository>"; \
	else .venv-openhands/bin/python -m tests.adapters.openhands.upstream $(OPENHANDS); fi

test-fleet: ## keep runs in a real Postgres, which the tests start, and share them between replicas
	$(call environment,.venv-fleet,dev$(comma)fleet)
	.venv-fleet/bin/python -X dev -m pytest -q $(PARALLEL) tests/fleet

test-libraries: ## let runs use libraries that start threads, and instrument them beside OpenTelemetry and Sentry
	$(call environment,.venv-libraries,dev$(comma)libraries)
	.venv-libraries/bin/python -m pytest -q tests/libraries

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
	$(call environment,$(VENV),)
	@$(VENV)/bin/python -m tests.host_suites.sdists anyio requests httpx
	@VIRTUAL_ENV=$(abspath $(VENV)) $(VENV)/bin/uv pip install -q '$(VENV)/anyio[trio]' --group $(VENV)/anyio/pyproject.toml:test \
		'$(VENV)/requests[socks]' httpbin pytest-httpbin pytest-mock '$(VENV)/httpx[brotli,cli,http2,socks,zstd]' chardet trustme uvicorn

LOWEST := tests/client/test_client.py tests/client/test_cut_connections.py tests/cli/test_commands.py tests/server/test_stopping.py \
	tests/server/test_streams.py tests/server/test_safety.py tests/server/test_lockout.py tests/stores/test_sqlite.py

test-lowest: ## run tests of the server, the client, the command line and the file with the oldest packages that they allow
	$(call environment,.venv-lowest,cli$(comma)client$(comma)server$(comma)sqlite,--upgrade --resolution lowest-direct)
	$(call environment,.venv-lowest,dev)
	.venv-lowest/bin/python -m pytest -q $(PARALLEL) $(LOWEST)

test-ui: ## open the web UI in a headless Chromium; needs chromium, and npm for the accessibility checker
	$(call environment,.venv-ui,dev$(comma)ui)
	$(call npm,axe-core)
	.venv-ui/bin/python -m pytest -q $(PARALLEL) tests/browser

test-tutorial: ## type the tutorial, from a clone in an empty environment to its end
	$(call environment,$(VENV),dev)
	$(BIN)/python -m pytest -q tests/tutorial

docs: ## build the documentation as a site, which loads nothing from elsewhere; writes site/
	$(call environment,.venv-docs,docs)
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --quiet --strict

bench-cli: ## measure what it costs to start a command; writes bench/results/cli.md
	$(call environment,$(VENV),dev)
	$(BIN)/python bench/cli.py

bench-openhands: ## measure interrupts of OpenHands, plain and supervised, after `make test-openhands`; writes bench/results/openhands.md
	.venv-openhands/bin/python bench/openhands.py

bench-fleet: ## measure replicas on Postgres, and stops of Celery, DBOS and arq beside them; writes bench/results/fleet.md
	$(call environment,.venv-fleet,dev$(comma)fleet$(comma)fleet-peers)
	.venv-fleet/bin/python bench/fleet.py

# the frameworks that bench/frameworks.py measures, with the packages of each
FRAMEWORKS := openai-agents pydantic-ai mcp llama-index autogen-agentchat agent-framework crewai smolagents strands-agents
PACKAGES_openai-agents := openai-agents
PACKAGES_pydantic-ai := 'pydantic-ai-slim[openai]'
PACKAGES_mcp := mcp openai
PACKAGES_llama-index := llama-index-core llama-index-llms-openai-like
PACKAGES_autogen-agentchat := autogen-agentchat 'autogen-ext[openai]'
PACKAGES_agent-framework := agent-framework-core agent-framework-openai
PACKAGES_crewai := crewai
PACKAGES_smolagents := 'smolagents[openai]'
PACKAGES_strands-agents := 'strands-agents[openai]'

bench-frameworks: ## stop unmodified agents of nine frameworks, with the newest versions; writes bench/results/frameworks.md
	@for framework in $(FRAMEWORKS); do $(MAKE) --no-print-directory framework-environment FRAMEWORK=$$framework \
		|| { echo "$$framework COULD NOT BE INSTALLED"; rm -rf .venv-fw-$$framework; }; done
	$(PYTHON) bench/frameworks.py

framework-environment:
	$(call environment,.venv-fw-$(FRAMEWORK),,--upgrade $(PACKAGES_$(FRAMEWORK)))

bench-ui: ## measure the web UI in a headless Chromium; writes bench/results/ui.md
	$(call environment,.venv-ui,dev$(comma)ui)
	.venv-ui/bin/python bench/ui.py

screenshots: ## make the pictures of the docs again
	$(call environment,.venv-ui,dev$(comma)ui)
	SCREENSHOTS=docs/images .venv-ui/bin/python -m pytest -q tests/browser/test_screenshots.py tests/browser/test_user_code_screenshots.py

screens: ## make the pictures of the command line again, in a real terminal
	$(call environment,$(VENV),dev)
	$(BIN)/python -m tests.cli.screens

check: check-ui ## lint, types, layers
	$(call environment,$(VENV),dev$(comma)check)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports
	$(MAKE) --no-print-directory check-public-types

# Adapters extend classes of frameworks: their packages are here, without what those need, which takes seconds.
TYPES := .venv-types
REPORT := $(TYPES)/report.txt

check-public-types: ## see that pyright knows the type of every public name
	@test -x $(TYPES)/bin/python || $(BIN)/uv venv -q --python $(BIN)/python $(TYPES)
	@VIRTUAL_ENV=$(abspath $(TYPES)) $(BIN)/uv pip install -q -e '.[all,postgres]'
	@VIRTUAL_ENV=$(abspath $(TYPES)) $(BIN)/uv pip install -q --no-deps --python-version 3.12 a2a-sdk openhands-sdk
	@PATH="$(abspath $(TYPES))/bin:$$PATH" $(BIN)/pyright --verifytypes stoppable --ignoreexternal >$(REPORT) \
		|| { grep -B 1 -A 3 ' - error:' $(REPORT); tail -3 $(REPORT); exit 1; }
	@grep 'Type completeness score' $(REPORT)

# $(call npm,package): packages for tests, beside the environments; without npm that is said, and is no failure
NPM := .venv-node
define npm
	@if command -v npm >/dev/null; then \
		test -d $(NPM)/node_modules/$(firstword $(subst @, ,$(1))) || npm install --silent --no-fund --no-audit --prefix $(NPM) $(1); \
	else echo "NPM IS MISSING: $(1) is not installed"; fi
endef

check-ui: ## check the types of the web UI, which is plain JavaScript; needs npm
	$(call npm,typescript@5)
	@if test -x $(NPM)/node_modules/.bin/tsc; then $(NPM)/node_modules/.bin/tsc -p tests/browser/tsconfig.json; \
	else echo "THE TYPES OF THE WEB UI WERE NOT CHECKED: npm is missing"; fi

model: ## model-check the control plane, and deliberate mistakes in it; needs spin and a C compiler
	$(PYTHON) models/check.py

soak: ## start, stop, kill and freeze at random for five minutes (SECONDS=…, SEED=…), and check what must hold
	$(call environment,$(VENV),dev)
	$(BIN)/python tests/faults/soak.py --seconds $(or $(SECONDS),300) $(if $(SEED),--seed $(SEED))

faults: ## kill, freeze and cut off replicas under load (STOPS=…, SEED=…): no stop that was answered may be lost
	$(call environment,.venv-fleet,dev$(comma)fleet)
	.venv-fleet/bin/python tests/faults/campaign.py --store sqlite --stops $(or $(STOPS),2000) $(if $(SEED),--seed $(SEED))
	.venv-fleet/bin/python tests/faults/campaign.py --store postgres --stops $(or $(STOPS),2000) $(if $(SEED),--seed $(SEED))
	.venv-fleet/bin/python tests/faults/signals.py
	.venv-fleet/bin/python tests/faults/busy_loop.py

faults-kill: ## kill -9 replicas under load, 300 times on SQLite and 150 times on Postgres, and look for lost stops (SEED=…)
	$(call environment,.venv-fleet,dev$(comma)fleet)
	.venv-fleet/bin/python tests/faults/campaign.py --store sqlite --fault SIGKILL --times 100 $(if $(SEED),--seed $(SEED))
	.venv-fleet/bin/python tests/faults/campaign.py --store postgres --fault SIGKILL --times 50 $(if $(SEED),--seed $(SEED))

bench: ## measure against a floor and against peers; writes bench/results/
	$(call environment,.venv-bench,bench$(comma)server)
	$(call environment,.venv-peers,peers)
	.venv-bench/bin/python bench/core.py
	.venv-bench/bin/python bench/participants.py
	.venv-bench/bin/python bench/outgoing.py
	.venv-bench/bin/python bench/supervisor.py
	.venv-bench/bin/python bench/server.py
	$(call environment,.venv-adk,dev$(comma)adk,--upgrade-package google-adk)
	$(call environment,.venv-adk1,dev$(comma)adk,'google-adk[a2a]==1.39.*')
	.venv-adk/bin/python bench/adk.py
	.venv-adk1/bin/python bench/adk.py
	$(call environment,.venv-a2a,dev$(comma)a2a$(comma)a2a-stores,--upgrade-package a2a-sdk)
	.venv-a2a/bin/python bench/a2a.py
	$(call environment,.venv-langgraph,dev$(comma)langgraph-test$(comma)ui,--upgrade-package langgraph --upgrade-package langchain)
	.venv-langgraph/bin/python bench/langgraph_stops.py

clean: ## remove the environments and caches
	rm -rf models/build site .venv .venv-* .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage*

comma := ,
empty :=
space := $(empty) $(empty)
