"""The protocols in which ``stoppable serve`` offers agents, beside its own HTTP."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stoppable._extras import pip_install
from stoppable.cli.exits import CommandError


@dataclass(frozen=True, slots=True)
class Protocol:
    """One protocol."""

    title: str
    path: str
    needs: Sequence[str] = ()
    """The modules that it needs; a server has those of the others."""
    extra: str = "server"


PROTOCOLS: Mapping[str, Protocol] = {
    "a2a": Protocol("A2A", "/a2a/NAME/", ("a2a",), "a2a"),
    "agui": Protocol("AG-UI", "/agui/NAME"),
    "langgraph": Protocol("LangGraph API", "/lg"),
    "mcp": Protocol("MCP", "/mcp", ("mcp", "mcp_types"), "mcp"),  # mcp 1 has no mcp_types
    "openai": Protocol("OpenAI API", "/v1"),
    "vercel": Protocol("Vercel AI SDK", "/vercel/NAME"),
}
"""By the names of their options."""

METRICS = Protocol("metrics", "/metrics", ("prometheus_client",), "metrics")
"""Offered as the protocols are, but no agent is called there."""


@dataclass(slots=True)
class Offer:
    """What a server offers beside its own HTTP, and what it could."""

    places: dict[str, str] = field(default_factory=dict)
    """The path of each protocol, by its title."""
    absent: dict[str, str] = field(default_factory=dict)
    """The extra of each protocol that is wanted and is not installed, by its title."""
    routers: list[Any] = field(default_factory=list)
    services: list[Any] = field(default_factory=list)

    def lines(self, url: str) -> Iterator[str]:
        """Yield what is where, for the screen."""
        yield from (f"  {title} at {url}{path}" for title, path in self.places.items())
        if self.absent:
            yield f"  not installed: {', '.join(self.absent)} ({pip_install(','.join(self.absent.values()))})"


def wanted(options: Mapping[str, bool], only: Collection[str]) -> set[str]:
    """Return the names of the protocols that the options ask for."""
    for name in only:
        if name not in {*PROTOCOLS, "http"}:
            raise CommandError(f"--only {name}: use one of {', '.join(PROTOCOLS)}, or http for no other protocol")
    return {name for name, is_wanted in options.items() if is_wanted and (not only or name in only)}


def offer(
    names: Collection[str], agents: Mapping[str, Callable[..., Any]], host: str, grpc_port: int | None = None
) -> Offer:
    """Return what is installed of the protocols and metrics among some names; ``grpc_port`` is for A2A."""
    made = Offer()
    for name, protocol in {**PROTOCOLS, "metrics": METRICS}.items():
        if name not in names:
            continue
        if all(map(importlib.util.find_spec, protocol.needs)):
            made.places[protocol.title] = protocol.path
            _add(made, name, agents, host, grpc_port)
        else:
            made.absent[protocol.title] = protocol.extra
    if grpc_port is not None and PROTOCOLS["a2a"].title not in made.places:
        raise CommandError(f"--a2a-grpc-port needs A2A: {pip_install('a2a', 'a2a-sdk[grpc]')}")
    return made


def _add(made: Offer, name: str, agents: Mapping[str, Callable[..., Any]], host: str, grpc_port: int | None) -> None:
    # Each is imported only if it is offered: they need extras, and take a while.
    if name == "a2a":
        if grpc_port is not None and importlib.util.find_spec("grpc") is None:
            raise CommandError('--a2a-grpc-port needs grpcio: pip install "a2a-sdk[grpc]"')
        from stoppable.adapters.a2a import Exposed  # noqa: PLC0415

        exposed = Exposed(agents, grpc=None if grpc_port is None else (host, grpc_port))
        made.routers.append(exposed.router)
        made.services.append(exposed.service)
    elif name == "mcp":
        from stoppable.adapters.mcp.serving import mcp_api  # noqa: PLC0415

        made.routers.append(mcp_api)
    elif name == "metrics":
        from stoppable.server.prometheus import metrics_api  # noqa: PLC0415

        made.routers.append(metrics_api)
    else:
        from stoppable.server import ag_ui, langgraph_api, openai_api, vercel_ai  # noqa: PLC0415

        apis = {"agui": ag_ui, "langgraph": langgraph_api, "openai": openai_api, "vercel": vercel_ai}
        made.routers.append(apis[name])
