"""The runs of an ADK session: how they are addressed, found and stopped."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import stoppable
from stoppable.supervisor import Supervisor

_LIVE = frozenset({stoppable.Status.PENDING, stoppable.Status.RUNNING, stoppable.Status.STOPPING})
_TEXT_LENGTH = 256  # of an owner and of a label


def address(app_name: str, user_id: str, session_id: str) -> dict[str, Any]:
    """Return what the runs of a session are started with."""
    return {"owner": _short(user_id), "labels": {"adk.app": _short(app_name), "adk.session": _short(session_id)}}


def _short(text: str) -> str:
    return text if len(text) <= _TEXT_LENGTH else "sha256:" + hashlib.sha256(text.encode()).hexdigest()


async def live_runs(supervisor: Supervisor, app_name: str, user_id: str, session_id: str) -> Sequence[str]:
    """Return the ids of the runs of a session that have not ended, without their children, newest first."""
    wanted = stoppable.Filter(status=_LIVE, **address(app_name, user_id, session_id))
    return [record.id for record in (await supervisor.list(wanted)).runs if record.parent_id is None]
