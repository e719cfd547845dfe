"""`stoppable serve` says over which protocols it offers its agents, and offers no others than it is told to."""

import urllib.error
import urllib.request

import pytest

from stoppable.cli import protocols
from stoppable.cli.exits import CommandError
from stoppable.cli.protocols import PROTOCOLS

from ..served import serving_process

EVERY = dict.fromkeys(PROTOCOLS, True)


@pytest.fixture
def installed(monkeypatch):
    """Pretend that only these modules are installed."""

    def pretend(*modules):
        monkeypatch.setattr(protocols.importlib.util, "find_spec", lambda name: name in modules or None)

    return pretend


def test_those_that_are_wanted_and_installed_are_offered(installed):
    installed()
    offer = protocols.offer(protocols.wanted(EVERY, ()), {}, "127.0.0.1")
    assert offer.places == {
        "AG-UI": "/agui/NAME",
        "LangGraph API": "/lg",
        "OpenAI API": "/v1",
        "Vercel AI SDK": "/vercel/NAME",
    }
    assert len(offer.routers) == 4
    *told, absent = offer.lines("http://h")
    assert told == [
        "  AG-UI at http://h/agui/NAME",
        "  LangGraph API at http://h/lg",
        "  OpenAI API at http://h/v1",
        "  Vercel AI SDK at http://h/vercel/NAME",
    ]
    assert absent.startswith("  not installed: A2A, MCP (pip install ")
    assert absent.endswith('[a2a,mcp]")')


@pytest.mark.parametrize(
    ("options", "only", "names"),
    [
        (EVERY, (), {*PROTOCOLS}),
        (EVERY | {"agui": False}, (), {*PROTOCOLS} - {"agui"}),
        (EVERY, ["openai"], {"openai"}),
        (EVERY | {"mcp": False}, ["openai", "mcp"], {"openai"}),
        (EVERY, ["http"], set()),
    ],
)
def test_only_and_no_choose_among_them(options, only, names):
    assert protocols.wanted(options, only) == names


def test_a_protocol_that_does_not_exist_is_refused():
    known = "a2a, agui, langgraph, mcp, openai, vercel, or http for no other"
    with pytest.raises(CommandError, match=f"--only soap: use one of {known}"):
        protocols.wanted(EVERY, ["soap"])


@pytest.mark.parametrize(
    ("modules", "only", "lacking"), [((), (), "A2A"), (("a2a",), (), "grpcio"), (("a2a",), ["http"], "A2A")]
)
def test_a_port_for_grpc_needs_what_it_is_for(installed, modules, only, lacking):
    installed(*modules)
    with pytest.raises(CommandError, match=f"--a2a-grpc-port needs {lacking}: "):
        protocols.offer(protocols.wanted(EVERY, only), {}, "127.0.0.1", 0)


def test_only_http_answers_to_nothing_else():
    with serving_process("--store", "memory://", "--only", "http") as (server, url):
        greeting = server.greeting()
        for protocol in PROTOCOLS.values():
            assert protocol.title not in greeting
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(url + protocol.path, data=b"{}", timeout=30)
        with urllib.request.urlopen(f"{url}/runs", timeout=30) as answer:
            assert answer.status == 200


def test_metrics_are_offered_beside_the_protocols_if_they_are_installed(installed):
    installed("prometheus_client")
    offer = protocols.offer({"metrics"}, {}, "127.0.0.1")
    assert offer.places == {"metrics": "/metrics"}
    assert len(offer.routers) == 1
    installed()
    (line,) = protocols.offer({"metrics"}, {}, "127.0.0.1").lines("http://h")
    assert line.startswith("  not installed: metrics (pip install ")
    assert line.endswith('[metrics]")')


def test_serve_has_metrics_unless_it_is_told_not_to():
    with serving_process("--store", "memory://", "--only", "http") as (server, url):
        assert f"metrics at {url}/metrics" in server.greeting()
        with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
            assert b"stoppable_build_info" in answer.read()
    with serving_process("--store", "memory://", "--no-metrics") as (server, url):
        assert "  metrics at " not in server.greeting()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{url}/metrics", timeout=30)
