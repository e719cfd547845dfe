"""The test suites and measurements that need packages besides those of `make test`, and the environments they run in.

`make NAME` runs one: it makes its environments first, in seconds if they are there. ARGS="-k words" is passed on to
pytest. `.ci/suites` chooses from the same table what a landing runs. A new adapter adds one Suite and, if its packages
conflict with all others, one Environment.

    python3 tools/suites.py [--newest] NAME [arguments of pytest]
    python3 tools/suites.py --list | --names | --folders | --compared
    python3 tools/suites.py --environment DIRECTORY [extra or group …]
    python3 tools/suites.py --npm PACKAGE
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NODE = ".venv-node"
UV_ENVIRONMENT = ".venv-uv"
UV = f"{UV_ENVIRONMENT}/bin/uv"
"""Makes all environments: it takes a tenth of a second where `python -m venv` and pip take ten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A Python environment that has the project in it."""

    directory: str
    needs: tuple[str, ...]
    """Extras and dependency groups of pyproject.toml."""
    packages: tuple[str, ...] = ()
    upgrade: tuple[str, ...] = ()
    """Packages that are brought to their newest version each time, so that we learn what it breaks."""
    options: tuple[str, ...] = ()
    afterwards: tuple[str, ...] = ()
    """Extras and groups that are installed without the options."""
    least_python: tuple[int, int] = (3, 11)

    @property
    def python(self) -> str:
        """Return the path of its interpreter."""
        return f"{self.directory}/bin/python"

    def make(self) -> None:
        """Make it, or bring it up to date."""
        if not (ROOT / UV).exists():
            _call(sys.executable, "-m", "venv", UV_ENVIRONMENT)
            _call(f"{UV_ENVIRONMENT}/bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check", "uv")
        if not (ROOT / self.python).exists():
            python = find_python(self.least_python) or sys.executable
            _call(UV, "venv", "-q", "--seed", "--python", python, self.directory)  # with pip, which some tests call
        upgrade = [word for package in self.upgrade for word in ("--upgrade-package", package)]
        self._install(self.needs, *self.options, *upgrade, *self.packages)
        if self.afterwards:
            self._install(self.afterwards)

    def _install(self, needs: Sequence[str], *arguments: str) -> None:
        known = tomllib.loads((ROOT / "pyproject.toml").read_text())
        extras = [name for name in needs if name in known["project"]["optional-dependencies"]]
        groups = [word for name in needs if name not in extras for word in ("--group", name)]
        project = f".[{','.join(extras)}]"
        command = [UV, "pip", "install", "-q", *arguments, "uv", "-e", project, *groups]
        _call(*command, env=os.environ | {"VIRTUAL_ENV": str(ROOT / self.directory)})


SERVICES = Environment(directory=".venv-services", needs=("dev", "api", "fleet", "libraries", "ui"))
DEPLOY = Environment(directory=".venv-deploy", needs=("dev", "fleet", "deploy"))
CLIENTS = Environment(directory=".venv-clients", needs=("dev", "clients"))
OPENAI1 = Environment(directory=".venv-openai1", needs=("dev",), packages=("openai>=1.60,<2",))
RELEASE = Environment(directory=".venv-release", needs=("dev", "release"))
FRAMEWORKS = Environment(directory=".venv-frameworks", needs=("dev", "frameworks"))  # needs another openai than CLIENTS
ADK = Environment(
    directory=".venv-adk",
    needs=("dev", "adk", "adk-test", "ui"),
    packages=("google-adk[a2a]",),
    upgrade=("google-adk",),
)
ADK1 = Environment(directory=".venv-adk1", needs=("dev", "adk", "adk-test"), packages=("google-adk[a2a]==1.39.*",))
A2A = Environment(directory=".venv-a2a", needs=("dev", "a2a", "a2a-stores"), upgrade=("a2a-sdk",))
# their messages and those of the SDK have the same names
A2A_CONFORMANCE = Environment(directory=".venv-tck", needs=())
LANGGRAPH = Environment(
    directory=".venv-langgraph", needs=("dev", "langgraph-test", "ui"), upgrade=("langgraph", "langchain")
)
LANGGRAPH1 = Environment(
    directory=".venv-langgraph1",
    needs=("dev", "langgraph-test"),
    packages=(
        "langgraph==1.0.*",
        "langgraph-prebuilt==1.0.8",
        "langchain==1.0.*",
        "langchain-mcp-adapters==0.2.0",
        "mcp<2",
    ),
)
LLAMA_INDEX = Environment(
    directory=".venv-llama-index",
    needs=("dev", "llama-index-test"),
    upgrade=("llama-index-core", "llama-index-workflows"),
    options=("--compile-bytecode",),  # most tests wait for its import
)
LLAMA_INDEX0 = Environment(
    directory=".venv-llama-index0",
    needs=("dev", "llama-index-test"),
    packages=("llama-index-core==0.14.0", "llama-index-workflows==2.14.0"),
    options=("--compile-bytecode",),
)
LANGGRAPH_SERVER = Environment(directory=".venv-langgraph-server", needs=("dev", "langgraph-server"))
MCP = Environment(directory=".venv-mcp", needs=("dev", "mcp", "mcp-test"), upgrade=("fastmcp", "mcp"))
MCP2 = Environment(directory=".venv-mcp2", needs=("dev", "mcp"), packages=("mcp==2.0.0",))
OPENHANDS = Environment(
    directory=".venv-openhands",
    needs=("dev", "openhands", "openhands-server"),
    upgrade=("openhands-agent-server", "openhands-sdk", "openhands-tools"),
    options=("--compile-bytecode",),  # the packages are large: compiled, they are imported in a tenth of the time
    least_python=(3, 12),
)
OPENAI_AGENTS = Environment(directory=".venv-openai-agents", needs=("dev", "openai-agents"), upgrade=("openai-agents",))
OPENAI_AGENTS1 = Environment(
    directory=".venv-openai-agents1", needs=("dev", "openai-agents"), packages=("openai-agents==0.20.*",)
)
ACP = Environment(directory=".venv-acp", needs=("dev", "acp"), upgrade=("agent-client-protocol",))
ACP0 = Environment(directory=".venv-acp0", needs=("dev", "acp"), packages=("agent-client-protocol==0.10.0",))
AGUI = Environment(directory=".venv-agui", needs=("dev", "agui-test"), upgrade=("ag-ui-protocol",))
AGUI0 = Environment(directory=".venv-agui0", needs=("dev",), packages=("ag-ui-protocol==0.1.10",))
LANGGRAPH_API = Environment(
    directory=".venv-langgraph-api", needs=("dev", "langgraph-api-test"), upgrade=("langgraph-sdk",)
)
LANGGRAPH_API0 = Environment(directory=".venv-langgraph-api0", needs=("dev",), packages=("langgraph-sdk==0.3.0",))
VERCEL_AI = Environment(directory=".venv-vercel-ai", needs=("dev",))
OPENAI_API = Environment(directory=".venv-openai-api", needs=("dev", "openai-api-test"), upgrade=("openai",))
OPENAI_API1 = Environment(directory=".venv-openai-api1", needs=("dev",), packages=("openai==1.99.*",))
PROTOCOLS = Environment(  # the official clients of all of them
    directory=".venv-protocols",
    needs=("dev", "a2a", "acp", "agui-test", "langgraph-api-test", "mcp", "mcp-test", "openai-api-test"),
    upgrade=("a2a-sdk", "ag-ui-protocol", "agent-client-protocol", "fastmcp", "langgraph-sdk", "mcp", "openai"),
    options=("--compile-bytecode",),
)
PYDANTIC_AI = Environment(
    directory=".venv-pydantic-ai",
    needs=("dev", "pydantic-ai-test"),
    upgrade=("pydantic-ai-slim",),
    options=("--compile-bytecode",),  # most tests of the commands wait for its import
)
PYDANTIC_AI2 = Environment(
    directory=".venv-pydantic-ai2",
    needs=("dev", "pydantic-ai-test"),
    packages=("pydantic-ai-slim==2.0.0",),
    options=("--compile-bytecode",),
)
AGENT_FRAMEWORK = Environment(
    directory=".venv-agent-framework",
    needs=("dev", "agent-framework-test"),
    upgrade=("agent-framework-core", "agent-framework-openai"),
    options=("--compile-bytecode",),
)
SMOLAGENTS = Environment(
    directory=".venv-smolagents",
    needs=("dev", "smolagents-test"),
    upgrade=("smolagents",),
    options=("--compile-bytecode",),
)
SMOLAGENTS1 = Environment(
    directory=".venv-smolagents1",
    needs=("dev", "smolagents-test"),
    packages=("smolagents==1.24.0",),
    options=("--compile-bytecode",),
)
STRANDS = Environment(
    directory=".venv-strands",
    needs=("dev", "strands-test"),
    upgrade=("strands-agents",),
    options=("--compile-bytecode",),  # most of the time is that of its import
)
STRANDS1 = Environment(
    directory=".venv-strands1",
    needs=("dev", "strands-test"),
    packages=("strands-agents==1.56.0",),
    options=("--compile-bytecode",),
)
TRANSFORMERS = Environment(
    directory=".venv-transformers",
    needs=("dev", "transformers-test"),
    upgrade=("transformers",),
    options=("--compile-bytecode",),  # most tests wait for its import
)
TRANSFORMERS4 = Environment(
    directory=".venv-transformers4",
    needs=("dev", "transformers-test"),
    packages=("transformers==4.50.0",),
    options=("--compile-bytecode",),
)
AUTOGEN = Environment(
    directory=".venv-autogen",
    needs=("dev", "autogen-test"),
    upgrade=("autogen-agentchat", "autogen-core", "autogen-ext"),
    options=("--compile-bytecode",),
)
AUTOGEN0 = Environment(
    directory=".venv-autogen0",
    needs=("dev", "autogen-test"),
    packages=("autogen-agentchat==0.7.0", "autogen-core==0.7.0", "autogen-ext==0.7.0"),
    options=("--compile-bytecode",),
)
CLAUDE_AGENT_SDK = Environment(
    directory=".venv-claude-agent-sdk",
    needs=("dev", "claude-agent-sdk-test"),
    upgrade=("claude-agent-sdk",),
)
CLAUDE_AGENT_SDK0 = Environment(
    directory=".venv-claude-agent-sdk0",
    needs=("dev", "claude-agent-sdk-test"),
    packages=("claude-agent-sdk==0.2.180",),
)
CREWAI = Environment(
    directory=".venv-crewai",
    needs=("dev", "crewai-test"),
    upgrade=("crewai",),
    options=("--compile-bytecode",),  # most of the time is that of its import
)
CREWAI1 = Environment(
    directory=".venv-crewai1",
    needs=("dev", "crewai-test"),
    packages=("crewai==1.15.20",),
    options=("--compile-bytecode",),
)
LOWEST = Environment(
    directory=".venv-lowest",
    needs=("cli", "client", "metrics", "server", "sqlite"),
    options=("--upgrade", "--resolution", "lowest-direct"),
    afterwards=("dev",),
)
BENCH = Environment(directory=".venv-bench", needs=("bench", "server", "peers"))
FLEET_PEERS = Environment(directory=".venv-fleet-peers", needs=("dev", "fleet", "fleet-peers"))
STOPBENCH = Environment(directory=".venv-stopbench", needs=("dev",), packages=("-e", "./stopbench"))
LANGGRAPH_UPSTREAM = Environment(
    directory=".venv-langgraph-upstream",
    needs=("langgraph-test",),
    upgrade=("langgraph", "langgraph-prebuilt", "langchain"),
)
COMPARED = tuple(
    Environment(directory=f".venv-fw-{name}", needs=(), packages=packages, options=("--upgrade",))
    for name, packages in {
        "openai-agents": ("openai-agents",),
        "pydantic-ai": ("pydantic-ai-slim[openai]",),
        "mcp": ("mcp", "openai"),
        "llama-index": ("llama-index-core", "llama-index-llms-openai-like"),
        "autogen-agentchat": ("autogen-agentchat", "autogen-ext[openai]"),
        "agent-framework": ("agent-framework-core", "agent-framework-openai"),
        "crewai": ("crewai",),
        "smolagents": ("smolagents[openai]",),
        "strands-agents": ("strands-agents[openai]",),
    }.items()
)
"""The frameworks that bench/frameworks.py measures: each brings its own versions of what they share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A command in an environment."""

    environment: Environment
    command: tuple[str, ...]
    """What follows the name of the interpreter."""


def _tests(environment: Environment, *paths: str, parallel: bool = True, development_mode: bool = True) -> Step:
    command = (*(("-X", "dev") if development_mode else ()), "-m", "pytest", "-q")
    return Step(
        environment=environment, command=(*command, *(("-n", "2", "--dist", "worksteal") if parallel else ()), *paths)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """What `make NAME` does. A landing runs those that say how long they take."""

    name: str
    about: str = ""
    steps: tuple[Step, ...] = ()
    """Empty if the Makefile has its commands, and says what it is about."""
    minutes: float = 0
    """About, on two idle cores; 0 if it is run by hand only."""
    older: float = 0
    """Minutes of these that go into repeating it with older packages, or on older Pythons: all steps but the first."""
    paths: tuple[str, ...] = ()
    """What concerns it alone: files, and folders with a slash at their end."""
    needs: tuple[str, ...] = ()
    """The extras and dependency groups of pyproject.toml that concern it alone."""
    npm: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Packages of npm, by the folder whose node_modules it reads."""
    programs: Mapping[str, str] = field(default_factory=dict)
    """Programs that it runs, with their packages in Debian."""
    variable: tuple[str, str] | None = None
    """A variable of make that it cannot do without, and what that is; without it, that is said, and is no failure."""


_ADAPTERS = "src/stoppable/adapters/"
_EVERY_WAY = ("tests/model_clients/test_unmodified.py", "tests/model_clients/test_every_way.py")
_REACT = {
    f"{NODE}/react-{version}": tuple(
        f"{package}@{version}" for package in ("react", "react-dom", "@types/react", "@types/react-dom")
    )
    for version in (18, 19)
}

# In the order in which `.ci/run` runs them and in which they take their turns.
SUITES = (
    Suite(name="test-versions", minutes=7.5, older=3.7),
    Suite(
        name="test-mutants",
        minutes=3,
        paths=("src/stoppable/stores/", "tests/machine/", "tests/mutants/", "tests/spec/", "tests/stores/"),
    ),
    Suite(
        name="test-clients",
        about="stop calls and streams of model clients, against a scripted model server",
        steps=(
            _tests(CLIENTS, "tests/model_clients"),
            _tests(OPENAI1, *_EVERY_WAY, "-k", "openai"),
            _tests(FRAMEWORKS, *_EVERY_WAY, "-k", "openai"),  # openai 3
        ),
        minutes=8.5,
        older=2.5,
        paths=(
            "docs/how-to/openai.md",
            "src/stoppable/_engine/guard.py",
            "src/stoppable/_engine/outgoing/",
            "src/stoppable/_engine/streams.py",
            "src/stoppable/testing/",
            "tests/model_clients/",
            "tests/providers.py",
        ),
        needs=("clients",),
    ),
    Suite(
        name="test-api",
        about="hold the server to its OpenAPI document",
        steps=(_tests(SERVICES, "tests/api", parallel=False, development_mode=False),),
        minutes=0.7,
        paths=("src/stoppable/server/", "tests/api/"),
        needs=("api", "server"),
    ),
    Suite(
        name="test-frameworks",
        about="run the stop through real agent frameworks",
        steps=(_tests(FRAMEWORKS, "tests/frameworks", parallel=False, development_mode=False),),
        minutes=0.8,
        paths=("docs/how-to/frameworks.md", "src/stoppable/_engine/instrumentation/", "tests/frameworks/"),
        needs=("frameworks",),
    ),
    Suite(
        name="test-libraries",
        about="let runs use libraries that start threads, and instrument them beside OpenTelemetry and Sentry",
        steps=(_tests(SERVICES, "tests/libraries", parallel=False, development_mode=False),),
        minutes=0.4,
        paths=("src/stoppable/_engine/instrumentation/", "tests/libraries/"),
        needs=("libraries",),
    ),
    Suite(
        name="test-adk",
        about="stop the agents of Google ADK on its own server, with the oldest supported version and the newest",
        steps=(_tests(ADK, "tests/adapters/adk"), _tests(ADK1, "tests/adapters/adk")),
        minutes=2.5,
        older=1.2,
        paths=(
            "docs/how-to/adk.md",
            "examples/adk_app/",
            f"{_ADAPTERS}_shared.py",
            f"{_ADAPTERS}_whole_calls.py",
            f"{_ADAPTERS}adk/",
            f"{_ADAPTERS}conversation.py",
            "tests/adapters/adk/",
            "tests/adapters/mcp_server.py",
        ),
        needs=("adk", "adk-test"),
    ),
    Suite(
        name="test-a2a",
        about="cancel tasks on servers of the A2A SDK, with its own client",
        steps=(_tests(A2A, "tests/adapters/a2a"),),
        minutes=1.3,
        paths=(
            "docs/how-to/a2a.md",
            "examples/three_tasks_a2a.py",
            f"{_ADAPTERS}a2a/",
            f"{_ADAPTERS}conversation.py",
            "tests/adapters/a2a/",
        ),
        needs=("a2a", "a2a-stores"),
    ),
    Suite(
        name="test-langgraph",
        about="stop graphs of LangGraph, with the oldest supported version and the newest, and on its own server",
        steps=(
            _tests(LANGGRAPH, "tests/adapters/langgraph"),
            _tests(LANGGRAPH1, "tests/adapters/langgraph"),
            _tests(
                LANGGRAPH_SERVER, "tests/adapters/langgraph/test_dev_server.py", parallel=False, development_mode=False
            ),
        ),
        minutes=1.8,
        older=0.9,
        paths=(
            "docs/how-to/langgraph.md",
            "examples/langgraph_chat/",
            f"{_ADAPTERS}_shared.py",
            f"{_ADAPTERS}a2a_langgraph/",
            f"{_ADAPTERS}langgraph/",
            "tests/adapters/langgraph/",
            "tests/adapters/mcp_server.py",
        ),
        needs=("langgraph", "langgraph-server", "langgraph-test"),
    ),
    Suite(
        name="test-llama-index",
        about="stop agents and workflows of LlamaIndex, with the oldest supported version and the newest",
        steps=(_tests(LLAMA_INDEX, "tests/adapters/llama_index"), _tests(LLAMA_INDEX0, "tests/adapters/llama_index")),
        minutes=0.7,
        older=0.35,
        paths=(
            "bench/frameworks_unmodified/with_llama_index.py",
            "docs/how-to/llama-index.md",
            f"{_ADAPTERS}_model_streams.py",
            f"{_ADAPTERS}_whole_calls.py",
            f"{_ADAPTERS}llama_index/",
            f"{_ADAPTERS}turn.py",
            "tests/adapters/llama_index/",
            "tests/adapters/scenarios/",
        ),
        needs=("llama-index", "llama-index-test"),
    ),
    Suite(
        name="test-mcp",
        about="cancel tool calls of MCP, with the oldest supported version and the newest, and with FastMCP",
        steps=(_tests(MCP, "tests/adapters/mcp"), _tests(MCP2, "tests/adapters/mcp")),
        minutes=1,
        older=0.4,
        paths=("docs/how-to/mcp.md", f"{_ADAPTERS}mcp/", "tests/adapters/mcp/"),
        needs=("mcp", "mcp-test"),
    ),
    Suite(
        name="test-mcp-server",
        about="stop agents that are served over MCP, with the oldest client and the newest, FastMCP and that of npm",
        steps=(_tests(MCP, "tests/surfaces/mcp_server"), _tests(MCP2, "tests/surfaces/mcp_server")),
        npm={NODE: ("@modelcontextprotocol/client",)},
        minutes=2,
        older=1,
        paths=(
            "docs/how-to/mcp-server.md",
            f"{_ADAPTERS}mcp/",
            "src/stoppable/cli/mcp_stdio.py",
            "src/stoppable/cli/stdio.py",
            "src/stoppable/server/surfaces/",
            "tests/surfaces/mcp_server/",
            "tests/surfaces/openai_api/agents.py",
        ),
        needs=("mcp", "mcp-test"),
    ),
    Suite(
        name="test-acp",
        about="stop agents in editors that speak ACP, with the oldest client and the newest, and that of npm",
        steps=(_tests(ACP, "tests/surfaces/acp"), _tests(ACP0, "tests/surfaces/acp")),
        npm={NODE: ("@agentclientprotocol/sdk",)},
        minutes=1,
        older=0.5,
        paths=(
            "docs/how-to/acp.md",
            f"{_ADAPTERS}acp/",
            "src/stoppable/cli/acp_stdio.py",
            "src/stoppable/cli/stdio.py",
            "src/stoppable/server/surfaces/",
            "tests/surfaces/acp/",
            "tests/surfaces/openai_api/agents.py",
        ),
        needs=("acp",),
    ),
    Suite(
        name="test-openhands",
        about="interrupt the conversations of OpenHands, on its own server too; needs a Python from 3.12 up",
        steps=(_tests(OPENHANDS, "tests/adapters/openhands", development_mode=False),),
        minutes=1.8,
        paths=(
            "docs/how-to/openhands.md",
            "examples/openhands_stop.py",
            f"{_ADAPTERS}openhands/",
            "tests/adapters/mcp_server.py",
            "tests/adapters/openhands/",
        ),
        needs=("openhands", "openhands-server"),
    ),
    Suite(
        name="test-openai-agents",
        about="stop agents of openai-agents, with the oldest supported version and the newest",
        steps=(
            _tests(OPENAI_AGENTS, "tests/adapters/openai_agents"),
            _tests(OPENAI_AGENTS1, "tests/adapters/openai_agents"),
        ),
        minutes=0.7,
        older=0.35,
        paths=(
            "bench/frameworks_unmodified/with_openai_agents.py",
            "docs/how-to/openai-agents.md",
            f"{_ADAPTERS}openai_agents/",
            f"{_ADAPTERS}turn.py",
            "tests/adapters/openai_agents/",
            "tests/adapters/scenarios/",
        ),
        needs=("openai-agents",),
    ),
    Suite(
        name="test-agui",
        about="stop agents over AG-UI, with the oldest client of npm that is tested and the newest, and with Python",
        steps=(_tests(AGUI, "tests/surfaces/ag_ui"), _tests(AGUI0, "tests/surfaces/ag_ui")),
        npm={NODE: ("@ag-ui/client",), f"{NODE}-agui0": ("@ag-ui/client@0.0.42",)},
        minutes=1.5,
        older=0.7,
        paths=(
            "docs/how-to/ag-ui.md",
            "src/stoppable/server/surfaces/",
            "tests/surfaces/ag_ui/",
            "tests/surfaces/openai_api/agents.py",
        ),
        needs=("agui-test",),
    ),
    Suite(
        name="test-vercel-ai",
        about="stop agents from Vercel's AI SDK, with the oldest package of npm that is supported and the newest",
        steps=(_tests(VERCEL_AI, "tests/surfaces/vercel_ai"),),
        npm={NODE: ("ai",), f"{NODE}-vercel5": ("ai@5.0.0",)},
        minutes=2,
        paths=(
            "docs/how-to/vercel-ai.md",
            "src/stoppable/server/surfaces/",
            "tests/surfaces/ag_ui/agents.py",
            "tests/surfaces/openai_api/agents.py",
            "tests/surfaces/vercel_ai/",
        ),
    ),
    Suite(
        name="test-langgraph-api",
        about="stop agents over the LangGraph API, with the oldest clients of Python and npm and the newest",
        steps=(
            _tests(LANGGRAPH_API, "tests/surfaces/langgraph_api"),
            _tests(
                LANGGRAPH_API0,
                *(f"tests/surfaces/langgraph_api/test_{name}.py" for name in ("stops", "streams", "threads")),
            ),
        ),
        npm={
            NODE: ("@langchain/langgraph-sdk",),
            f"{NODE}-langgraph0": ("@langchain/langgraph-sdk@0.1.0",),
        },
        minutes=1.5,
        older=0.5,
        paths=(
            "docs/how-to/langgraph-api.md",
            "src/stoppable/server/surfaces/",
            "tests/surfaces/langgraph_api/",
            "tests/surfaces/openai_api/agents.py",
        ),
        needs=("langgraph-api-test",),
    ),
    Suite(
        name="test-openai-api",
        about="stop agents behind the OpenAI API, with the oldest client of OpenAI and the newest, and that of npm",
        steps=(
            _tests(OPENAI_API, "tests/surfaces/openai_api"),
            _tests(OPENAI_API1, "tests/surfaces/openai_api"),
        ),
        npm={NODE: ("openai",)},
        minutes=1.5,
        older=0.7,
        paths=("docs/how-to/openai-api.md", "src/stoppable/server/surfaces/", "tests/surfaces/openai_api/"),
        needs=("openai-api-test",),
    ),
    Suite(
        name="test-six-clients",
        about="start one agent and stop it from six clients, as docs/how-to/six-clients.md says",
        steps=(_tests(PROTOCOLS, "tests/surfaces/six_clients", parallel=False),),
        minutes=0.7,
        paths=("docs/how-to/six-clients.md", "src/stoppable/server/surfaces/", "tests/surfaces/six_clients/"),
        needs=("a2a", "langgraph-api-test", "mcp", "openai-api-test"),
    ),
    Suite(
        name="test-pydantic-ai",
        about="stop agents of Pydantic AI, with the oldest supported version and the newest",
        steps=(
            _tests(PYDANTIC_AI, "tests/adapters/pydantic_ai"),
            _tests(PYDANTIC_AI2, "tests/adapters/pydantic_ai"),
        ),
        minutes=0.7,
        older=0.3,
        paths=(
            "bench/frameworks_unmodified/with_pydantic_ai.py",
            "docs/how-to/pydantic-ai.md",
            f"{_ADAPTERS}pydantic_ai/",
            f"{_ADAPTERS}turn.py",
            "tests/adapters/pydantic_ai/",
            "tests/adapters/scenarios/",
        ),
        needs=("pydantic-ai", "pydantic-ai-test"),
    ),
    Suite(
        name="test-agent-framework",
        about="stop agents of Microsoft Agent Framework, with the newest version",
        steps=(_tests(AGENT_FRAMEWORK, "tests/adapters/agent_framework"),),
        minutes=0.4,
        paths=(
            "bench/frameworks_unmodified/with_agent_framework.py",
            "docs/how-to/agent-framework.md",
            f"{_ADAPTERS}agent_framework/",
            f"{_ADAPTERS}turn.py",
            "tests/adapters/agent_framework/",
            "tests/adapters/scenarios/",
        ),
        needs=("agent-framework", "agent-framework-test"),
    ),
    Suite(
        name="test-smolagents",
        about="stop agents of smolagents, with the oldest supported version and the newest",
        steps=(_tests(SMOLAGENTS, "tests/adapters/smolagents"), _tests(SMOLAGENTS1, "tests/adapters/smolagents")),
        minutes=0.7,
        older=0.35,
        paths=(
            "bench/frameworks_unmodified/with_smolagents.py",
            "docs/how-to/smolagents.md",
            f"{_ADAPTERS}smolagents/",
            f"{_ADAPTERS}turn.py",
            "tests/adapters/scenarios/",
            "tests/adapters/smolagents/",
        ),
        needs=("smolagents", "smolagents-test"),
    ),
    Suite(
        name="test-strands",
        about="stop agents, graphs and swarms of Strands Agents, with the oldest supported version and the newest",
        steps=(_tests(STRANDS, "tests/adapters/strands"), _tests(STRANDS1, "tests/adapters/strands")),
        minutes=0.8,
        older=0.4,
        paths=(
            "bench/frameworks_unmodified/with_strands_agents.py",
            "docs/how-to/strands.md",
            f"{_ADAPTERS}strands/",
            f"{_ADAPTERS}turn.py",
            "tests/adapters/scenarios/",
            "tests/adapters/strands/",
        ),
        needs=("strands", "strands-test"),
    ),
    Suite(
        name="test-claude-agent-sdk",
        about="stop Claude Code, as the Claude Agent SDK starts it, with the oldest supported version and the newest",
        steps=(
            _tests(CLAUDE_AGENT_SDK, "tests/adapters/claude_agent_sdk"),
            _tests(CLAUDE_AGENT_SDK0, "tests/adapters/claude_agent_sdk"),
        ),
        minutes=4,
        older=2,
        paths=(
            "docs/how-to/claude-agent-sdk.md",
            f"{_ADAPTERS}claude_agent_sdk/",
            f"{_ADAPTERS}turn.py",
            "tests/adapters/claude_agent_sdk/",
            "tests/adapters/scenarios/",
        ),
        needs=("claude-agent-sdk", "claude-agent-sdk-test"),
    ),
    Suite(
        name="test-transformers",
        about="stop local models: transformers, the oldest supported version and the newest, and a llama.cpp server",
        steps=(
            _tests(TRANSFORMERS, "tests/adapters/transformers"),
            _tests(TRANSFORMERS4, "tests/adapters/transformers"),
        ),
        # Run by hand: the build of PyTorch that an index has by default may take 6 GB.
        paths=(
            "docs/how-to/local-models.md",
            f"{_ADAPTERS}transformers/",
            "tests/adapters/transformers/",
        ),
        needs=("transformers", "transformers-test"),
    ),
    Suite(
        name="test-autogen",
        about="stop agents and teams of AutoGen, with the oldest supported version and the newest",
        steps=(_tests(AUTOGEN, "tests/adapters/autogen"), _tests(AUTOGEN0, "tests/adapters/autogen")),
        minutes=1.5,
        older=0.8,
        paths=(
            "bench/frameworks_unmodified/with_autogen_agentchat.py",
            "docs/how-to/autogen.md",
            f"{_ADAPTERS}autogen/",
            f"{_ADAPTERS}turn.py",
            "tests/adapters/autogen/",
            "tests/adapters/scenarios/",
        ),
        needs=("autogen", "autogen-test"),
    ),
    Suite(
        name="test-crewai",
        about="stop crews, agents and flows of CrewAI, with the oldest supported version and the newest",
        steps=(_tests(CREWAI, "tests/adapters/crewai"), _tests(CREWAI1, "tests/adapters/crewai")),
        # Run by hand until it has passed five times in a row with each version, also beside other work.
        paths=(
            "bench/frameworks_unmodified/with_crewai.py",
            "docs/how-to/crewai.md",
            f"{_ADAPTERS}crewai/",
            f"{_ADAPTERS}turn.py",
            "tests/adapters/crewai/",
            "tests/adapters/scenarios/",
        ),
        needs=("crewai", "crewai-test"),
    ),
    Suite(
        name="test-stopbench",
        about="see that the judge of the benchmark is right: subjects that lie and that are perfect, and mutants of it",
        steps=(_tests(STOPBENCH, "tests/stopbench"),),
        # Run by hand: one of its tests still fails now and then.
        paths=("docs/stopbench.md", "stopbench/", "tests/stopbench/"),
    ),
    Suite(
        name="test-fleet",
        about="keep runs in a real Postgres, which the tests start, and share them between replicas",
        steps=(_tests(SERVICES, "tests/fleet"),),
        minutes=2.5,
        paths=(
            "docs/how-to/postgres.md",
            "src/stoppable/stores/base.py",
            "src/stoppable/stores/postgres/",
            "src/stoppable/stores/rules.py",
            "src/stoppable/stores/sql/",
            "src/stoppable/supervisor/lease.py",
            "tests/faults/",
            "tests/fleet/",
        ),
        needs=("fleet", "postgres"),
    ),
    Suite(
        name="test-deploy",
        about="run what deploy/ has: replicas behind nginx and Caddy, the steps of the image, Prometheus; needs these",
        steps=(_tests(DEPLOY, "tests/deploy"),),
        programs={
            "caddy": "caddy",
            "nginx": "nginx-light",
            "openssl": "openssl",
            "prometheus": "prometheus",
            "promtool": "prometheus",
            "systemd-analyze": "systemd",
        },
        minutes=2,
        paths=("deploy/", "docs/how-to/deploy.md", "tests/deploy/"),
        needs=("deploy",),
    ),
    Suite(
        name="test-lowest",
        about="run tests of the server, the client, the command line and the file with the oldest allowed packages",
        steps=(
            _tests(
                LOWEST,
                "tests/client/test_client.py",
                "tests/client/test_cut_connections.py",
                "tests/cli/test_commands.py",
                "tests/server/test_stopping.py",
                "tests/server/test_streams.py",
                "tests/server/test_safety.py",
                "tests/server/test_lockout.py",
                "tests/server/test_metrics.py",
                "tests/stores/test_sqlite.py",
                development_mode=False,
            ),
        ),
        minutes=0.8,
        needs=("cli", "client", "metrics", "server", "sqlite"),
    ),
    Suite(
        name="test-ui",
        about="open the web UI in a headless Chromium; needs chromium, and npm for the accessibility checker and React",
        steps=(_tests(SERVICES, "tests/browser", development_mode=False),),
        npm={NODE: ("axe-core", "esbuild", "typescript@5"), **_REACT},
        minutes=10,
        paths=(
            "docs/embedding.md",
            "docs/how-to/ui.md",
            "examples/user_code_app/",
            "js/",
            "src/stoppable/server/ui/",
            "tests/browser/",
        ),
        needs=("ui",),
    ),
    Suite(
        name="release",
        about="build the wheel and the source archive into dist/, and try them in empty environments; "
        "TAG=v0.1.0 refuses what is not ready for that tag",
        steps=(Step(environment=RELEASE, command=("tools/release.py",)),),
        minutes=2,
        paths=(
            ".github/workflows/release.yml",
            "src/stoppable/_extras.py",
            "src/stoppable/cli/__init__.py",
            "tests/tutorial/",
            "tools/release.py",
        ),
        needs=("all", "release"),
    ),
    Suite(
        name="model",
        minutes=1,
        paths=(
            "models/",
            "src/stoppable/stores/base.py",
            "src/stoppable/stores/rules.py",
            "src/stoppable/supervisor/lease.py",
        ),
    ),
    Suite(
        name="test-a2a-conformance",
        about="run the public A2A conformance suites against the plain SDK, the adapter and `stoppable serve`: "
        "TCK=<clone of a2a-tck>; writes bench/results/a2a-conformance.md",
        steps=(
            Step(environment=A2A_CONFORMANCE, command=("-c", "")),
            Step(environment=A2A, command=("-m", "tests.adapters.a2a.upstream", "$TCK", A2A_CONFORMANCE.directory)),
        ),
        variable=("TCK", "a clone of https://github.com/a2aproject/a2a-tck, with its branches 1.0-dev and 0.3.x"),
    ),
    Suite(
        name="test-openhands-upstream",
        about="run OpenHands' own tests of conversations plain and with the adapter: OPENHANDS=<checkout>; "
        "writes bench/results/openhands-upstream.md",
        steps=(Step(environment=OPENHANDS, command=("-m", "tests.adapters.openhands.upstream", "$OPENHANDS")),),
        variable=("OPENHANDS", "a checkout of its repository, because its packages have no tests"),
    ),
    Suite(
        name="bench",
        about="measure against a floor and against peers; writes bench/results/",
        steps=(
            *(
                Step(environment=BENCH, command=(f"bench/{name}.py",))
                for name in ("core", "participants", "outgoing", "supervisor", "server")
            ),
            Step(environment=ADK, command=("bench/adk.py",)),
            Step(environment=ADK1, command=("bench/adk.py",)),
            Step(environment=A2A, command=("bench/a2a_cancels.py",)),
            Step(environment=LANGGRAPH, command=("bench/langgraph_stops.py",)),
        ),
    ),
    Suite(
        name="stopbench",
        about="stop agents of twelve frameworks, plain and with stoppable, in every scenario; "
        "writes bench/results/stopbench.md",
        steps=(
            Step(
                environment=STOPBENCH,
                command=(
                    *("-m", "stopbench", "run", "--repeat", "2", "--stoppable", "."),
                    *("--environments", ".venv-stopbench-subjects", "--output", ".venv-stopbench/results.json"),
                ),
            ),
            Step(
                environment=STOPBENCH,
                command=(
                    *("-m", "stopbench", "report", ".venv-stopbench/results.json"),
                    *("--markdown", "bench/results/stopbench.md", "--html", ".venv-stopbench/stopbench.html"),
                ),
            ),
        ),
    ),
    Suite(
        name="bench-openhands",
        about="measure interrupts of OpenHands, plain and supervised; writes bench/results/openhands.md",
        steps=(Step(environment=OPENHANDS, command=("bench/openhands.py",)),),
    ),
    Suite(
        name="bench-fleet",
        about="measure replicas on Postgres, beside stops of Celery, DBOS and arq; writes bench/results/fleet.md",
        steps=(Step(environment=FLEET_PEERS, command=("bench/fleet.py",)),),
    ),
    Suite(
        name="bench-local-models",
        about="measure what a guarded local model costs per token; writes bench/results/local-models.md",
        steps=(Step(environment=TRANSFORMERS, command=("bench/local_models.py",)),),
    ),
    Suite(
        name="bench-protocols",
        about="cancel an agent by the client of each protocol, on a plain server of its SDK and on `stoppable serve`; "
        "writes bench/results/protocols.md; needs npm for AG-UI and Vercel's AI SDK",
        steps=(
            Step(environment=LANGGRAPH_SERVER, command=("-c", "")),
            Step(environment=PROTOCOLS, command=("bench/protocols.py",)),
        ),
        npm={NODE: ("@ag-ui/client", "ai")},
    ),
    Suite(
        name="bench-adapters",
        about="measure what the adapters of frameworks add to model calls, tool calls and streamed tokens; writes "
        "bench/results/adapters.md",
        steps=(
            *(
                Step(environment=environment, command=("-c", ""))
                for environment in (
                    PYDANTIC_AI,
                    AGENT_FRAMEWORK,
                    SMOLAGENTS,
                    STRANDS,
                    AUTOGEN,
                    LLAMA_INDEX,
                    CREWAI,
                    OPENAI_AGENTS,
                )
            ),
            Step(environment=OPENAI_AGENTS, command=("bench/adapters.py",)),
        ),
    ),
    Suite(
        name="bench-ui",
        about="measure the web UI in a headless Chromium; writes bench/results/ui.md",
        steps=(Step(environment=SERVICES, command=("bench/ui.py",)),),
    ),
)


def folders() -> list[str]:
    """Return the folders of tests that suites of this table run, so that `make test` leaves them out."""
    words = (word for suite in SUITES for step in suite.steps for word in step.command)
    return list(dict.fromkeys(word for word in words if word.startswith("tests/") and not word.endswith(".py")))


def run(name: str, arguments: Sequence[str], *, newest: bool = False) -> None:
    """Make the environments of a suite, and carry out its steps, or only the first; the arguments are for pytest."""
    suite = next(suite for suite in SUITES if suite.name == name)
    steps = suite.steps[:1] if newest else suite.steps
    if suite.variable is not None and not os.environ.get(suite.variable[0]):
        print(f"{name.upper()} WAS NOT RUN: say {suite.variable[0]}=…, {suite.variable[1]}")
        return
    environments = {step.environment.directory: step.environment for step in steps}
    for environment in environments.values():
        if find_python(environment.least_python) is None:
            version = ".".join(map(str, environment.least_python))
            print(f"{name.upper()} WAS NOT RUN: it needs Python {version} or newer, and none is installed")
            return
        environment.make()
    for folder, packages in suite.npm.items():
        install_npm(folder, packages)
    install_programs(suite)
    for step in steps:
        command = [os.path.expandvars(word) for word in step.command]
        _call(step.environment.python, *command, *(arguments if "pytest" in command else ()), echo=True)


def install_npm(folder: str, packages: Sequence[str]) -> None:
    """Install packages of npm beside the environments; without npm that is said, and is no failure."""
    names = {package: package[0] + package[1:].partition("@")[0] for package in packages}  # @types/react@18 has two
    missing = [package for package, name in names.items() if not (ROOT / folder / "node_modules" / name).is_dir()]
    if missing and shutil.which("npm") is None:
        print(f"NPM IS MISSING: {', '.join(missing)} are not installed")
    elif missing:
        _call("npm", "install", "--silent", "--no-fund", "--no-audit", "--prefix", folder, *missing)


def install_programs(suite: Suite) -> None:
    """Install what is missing, as root on Debian; elsewhere that is said, and is no failure: its tests are skipped."""
    apt_get = shutil.which("apt-get")
    missing = {name: package for name, package in suite.programs.items() if find_program(name) is None}
    if missing and os.geteuid() == 0 and apt_get is not None:
        packages = sorted(set(missing.values()))
        # Their servers are not started: Debian starts nothing in the runlevel of a rescue.
        quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
        for command in (["update", "-q"], ["install", "-yq", "--no-install-recommends", *packages]):
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run([apt_get, *command], env=quiet, timeout=900, check=False)
        missing = {name: package for name, package in missing.items() if find_program(name) is None}
    for name, package in missing.items():
        print(
            f"{name.upper()} WAS NOT TESTED: it is missing, and could not be installed here (apt-get install {package})"
        )


def find_program(name: str) -> str | None:
    """Return the path of a program; servers are where only root looks."""
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin")))


def find_python(least: tuple[int, int]) -> str | None:
    """Return the first interpreter that is new enough: this one, one on the path, or one of pyenv."""
    pyenv = map(str, sorted(Path.home().glob(".pyenv/versions/3.*/bin/python")))
    for candidate in (sys.executable, "python3", *(f"python3.{minor}" for minor in range(13, 10, -1)), *pyenv):
        check = f"import sys; sys.exit(sys.version_info < {least})"
        with contextlib.suppress(OSError):
            if subprocess.run([candidate, "-c", check], stderr=subprocess.DEVNULL, check=False).returncode == 0:
                return candidate
    return None


def _call(*command: str, echo: bool = False, env: Mapping[str, str] | None = None) -> None:
    if echo:
        print(shlex.join(command), flush=True)
    done = subprocess.run(command, cwd=ROOT, env=env, check=False)
    if done.returncode:
        sys.exit(done.returncode)


def main(arguments: Sequence[str]) -> None:
    """Do what the docstring of the module says."""
    match arguments:
        case ["--names"]:
            print(*(suite.name for suite in SUITES if suite.steps))
        case ["--folders"]:
            print(*folders())
        case ["--list"]:
            for suite in SUITES:
                if suite.about:
                    print(f"{suite.name}:## {suite.about}")
        case ["--environment", directory, *needs]:
            in_table = [step.environment for suite in SUITES for step in suite.steps]
            known = {each.directory: each for each in (*in_table, LANGGRAPH_UPSTREAM, *COMPARED)}
            known.get(directory, Environment(directory=directory, needs=tuple(needs))).make()
        case ["--compared"]:
            print(*(environment.directory for environment in COMPARED))
        case ["--npm", package]:
            install_npm(NODE, [package])
        case ["--newest", name, *rest] | [name, *rest] if name in {suite.name for suite in SUITES}:
            run(name, rest, newest=arguments[0] == "--newest")
        case _:
            sys.exit(f"{shlex.join(arguments) or 'nothing'} is not a suite: `make help` lists them")


if __name__ == "__main__":
    main(sys.argv[1:])
