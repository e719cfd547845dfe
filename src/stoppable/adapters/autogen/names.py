"""The names of AutoGen that this adapter replaces or that are undocumented.

Everything private is here, so that one function can say what a version lacks (``missing``).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

from autogen_agentchat.base import Response
from autogen_agentchat.messages import StopMessage, TextMessage
from autogen_core import CancellationToken, DefaultTopicId

import stoppable
from stoppable.adapters import _upstream
from stoppable.adapters._upstream import find

_TEAMS = "autogen_agentchat.teams._group_chat"
_MANAGER = f"{_TEAMS}._base_group_chat_manager:BaseGroupChatManager"
_CONTAINER = f"{_TEAMS}._chat_agent_container:ChatAgentContainer"
_ACTOR = f"{_TEAMS}._sequential_routed_agent:SequentialRoutedAgent"
_REQUEST = f"{_TEAMS}._events:GroupChatRequestPublish"
_RESPONSE = f"{_TEAMS}._events:GroupChatAgentResponse"
_TERMINATION = f"{_TEAMS}._events:GroupChatTermination"
_ASSISTANT = "autogen_agentchat.agents:AssistantAgent"

_FUNCTIONS = {
    f"{_ASSISTANT}.on_messages_stream": ("self", "messages", "cancellation_token"),
    f"{_ASSISTANT}._execute_tool_call": (
        "tool_call", "workbench", "handoff_tools", "agent_name", "cancellation_token",
    ),
    "autogen_agentchat.teams:BaseGroupChat.run_stream": ("self", "task", "cancellation_token"),
    f"{_ACTOR}.on_message_impl": ("self", "message", "ctx"),
    f"{_MANAGER}._transition_to_next_speakers": ("self", "cancellation_token"),
    f"{_MANAGER}._signal_termination": ("self", "message"),
    _REQUEST: (),
    _RESPONSE: ("response", "name"),
    _TERMINATION: (),
    "autogen_core:CancellationToken.cancel": ("self",),
    "autogen_core.models:ChatCompletionClient.create": ("self", "messages"),
    "autogen_core.models:ChatCompletionClient.create_stream": ("self", "messages"),
}  # fmt: skip
"""What is wrapped or called, with the first parameters that the adapter relies on."""

_ATTRIBUTES = {
    f"{_TEAMS}._base_group_chat_manager": (
        "self._active_speakers",
        "self._current_turn = ",
        "self._termination_condition = ",
        "self._name = ",
    ),
    f"{_TEAMS}._chat_agent_container": ("self._message_buffer", "self._parent_topic_type = ", "self._agent = "),
    f"{_TEAMS}._base_group_chat": ("self._embedded_runtime = ", "self._output_message_queue"),
    "autogen_agentchat.agents._assistant_agent": ("cls._execute_tool_call(", "cancellation_token=cancellation_token"),
}
"""What nothing but the source of a module shows."""


def missing() -> list[str]:
    """Return the names that this adapter needs and the installed packages do not have."""
    return _upstream.missing(_FUNCTIONS, _ATTRIBUTES)


ACTOR: Any = find(_ACTOR)
"""What a team makes of its manager and of each participant."""
MANAGER: Any = find(_MANAGER)
"""Chooses who speaks next."""
CONTAINER: Any = find(_CONTAINER)
"""Holds a participant of a team, and what was said since its last turn."""
_Request, _AgentResponse, _Termination = find(_REQUEST), find(_RESPONSE), find(_TERMINATION)

STOPPED = "The run was stopped."
"""Why a team has ended."""


def is_request(container: Any, message: Any) -> bool:
    """Return whether a message asks a participant of a team for its turn."""
    return isinstance(container, CONTAINER) and isinstance(message, _Request)


def participant_of(container: Any) -> Any:
    """Return the agent or team in a container."""
    return container._agent


async def respond(container: Any, text: str, token: CancellationToken, *, has_begun: bool) -> None:
    """Tell the others in a team what a participant has said; one that has begun keeps what it was told itself."""
    name = container._agent.name
    if has_begun:
        container._message_buffer.clear()
    await container.publish_message(
        _AgentResponse(response=Response(chat_message=TextMessage(content=text, source=name)), name=name),
        topic_id=DefaultTopicId(type=container._parent_topic_type),
        cancellation_token=token,
    )


async def end_team(manager: Any) -> None:
    """End a team as one of its termination conditions would, so that it can be run again."""
    if manager._termination_condition is not None:
        await manager._termination_condition.reset()
    manager._current_turn = 0
    manager._active_speakers.clear()
    await manager._signal_termination(StopMessage(content=STOPPED, source=manager._name))


_END_SECONDS = 5.0


async def until_ended(team: Any) -> None:
    """Wait until a team has ended whose runtime is the user's own: its last message would end its next run."""
    if not team._embedded_runtime:
        with contextlib.suppress(TimeoutError), stoppable.shielded(_END_SECONDS):
            async with asyncio.timeout(_END_SECONDS):
                while not isinstance(await team._output_message_queue.get(), _Termination):
                    pass


def model_name(client: Any) -> str:
    """Return the name of a client's model, or of its class."""
    return str((getattr(client, "_create_args", None) or {}).get("model") or type(client).__name__)


def subclasses(kind: type) -> Sequence[type]:
    """Return the subclasses of a class, and theirs."""
    kinds: list[type] = list(type.__subclasses__(kind))
    for each in kinds:
        kinds += type.__subclasses__(each)
    return kinds
