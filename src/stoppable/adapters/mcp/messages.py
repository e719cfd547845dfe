"""What clients and servers with this adapter say to each other, beside the protocol.

A cancel of MCP has no answer. A server with this adapter declares the experimental capability ``stoppable``, and a
client with it sends such a server a request instead of a cancel: it carries the mode, and its answer is how far the
stop is. Other servers and clients never see any of it.
"""

from __future__ import annotations

from typing import Any

import mcp_types
from pydantic import BaseModel

from stoppable import Fate, Outcome, Status
from stoppable.records import OutcomeRecord

CAPABILITY = "stoppable"
STOP = "stoppable/stop"
CALL_ID = "stoppable/call"
"""In the ``_meta`` of a tool call: the name by which ``STOP`` means it. It is random, so no other client knows it."""
END = "stoppable/end"
"""In the ``_meta`` of the result of a call that was stopped: a ``CallStopAnswer``."""


class StopParams(mcp_types.RequestParams):
    """Which call to stop, and how."""

    call: str
    mode: str
    reason: str


class CallStopRequest(mcp_types.Request[StopParams, str]):
    """Stops the run of a tool call."""

    method: str = STOP
    params: StopParams


class CallStopAnswer(mcp_types.Result):
    """What has become of the call: the status of its run, and the fate of the tool once it has ended."""

    status: str
    fate: str | None = None


def declares_stop(capabilities: Any) -> bool:
    """Return whether a server has this adapter, from its capabilities."""
    return CAPABILITY in (getattr(capabilities, "experimental", None) or {})


def with_stop(result: Any) -> Any:
    """Return the answer to a client that connects, with the capability to confirm stops."""
    if isinstance(result, BaseModel):  # from FastMCP
        result = result.model_dump(by_alias=True, mode="json", exclude_none=True)
    capabilities = dict(result.get("capabilities") or {})
    experimental = {**(capabilities.get("experimental") or {}), CAPABILITY: {}}
    return {**result, "capabilities": {**capabilities, "experimental": experimental}}


_FATES = {None: Fate.CLOSED, "signal": Fate.CLOSED, "interrupt": Fate.INTERRUPTED, "cancel": Fate.CANCELLED}


def fate_of(outcome: Outcome[Any] | OutcomeRecord) -> Fate | None:
    """Return what became of the code of a run that has ended; None if that is not known, because it is lost."""
    if outcome.status is Status.LOST:
        return None
    if outcome.status is not Status.STOPPED:
        return Fate.FINISHED
    return _FATES.get(outcome.rung, Fate.KILLED)
