"""Clients of a stoppable server: ``Client`` for blocking code, ``AsyncClient`` for async code."""

from typing import TYPE_CHECKING

from stoppable._extras import pip_install
from stoppable.client.server_answers import AgentInfo, Change, NotAllowed, ServerError, ServerUnreachable

if TYPE_CHECKING:
    from stoppable.client._async.calls import AsyncClientRun
    from stoppable.client._async.client import AsyncClient
    from stoppable.client._sync.calls import ClientRun
    from stoppable.client._sync.client import Client

__all__ = [
    "AgentInfo",
    "AsyncClient",
    "AsyncClientRun",
    "Change",
    "Client",
    "ClientRun",
    "NotAllowed",
    "ServerError",
    "ServerUnreachable",
]


def __getattr__(name: str) -> object:
    """Import the clients when they are first used: httpx takes longer than most commands of the command line."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    try:
        from stoppable.client._async.calls import AsyncClientRun  # noqa: PLC0415
        from stoppable.client._async.client import AsyncClient  # noqa: PLC0415
        from stoppable.client._sync.calls import ClientRun  # noqa: PLC0415
        from stoppable.client._sync.client import Client  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name != "httpx":
            raise
        message = f"the client needs an extra: {pip_install('client')}"
        raise ModuleNotFoundError(message, name="httpx") from None
    globals().update(AsyncClient=AsyncClient, AsyncClientRun=AsyncClientRun, Client=Client, ClientRun=ClientRun)
    return globals()[name]
