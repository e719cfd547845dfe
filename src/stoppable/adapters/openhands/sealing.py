"""The state of a conversation after a stop: every action has an answer, and it can be run again."""

from __future__ import annotations

from typing import Any

from openhands.sdk.conversation.state import ConversationExecutionStatus, ConversationState
from openhands.sdk.event import InterruptEvent

from stoppable.adapters.openhands import names
from stoppable.adapters.openhands.supervised import Turn

_REFUSAL = "The conversation was interrupted before the action was confirmed"
_UNFINISHED = (ConversationExecutionStatus.RUNNING, ConversationExecutionStatus.IDLE)


def seal(conversation: Any, turn: Turn | None) -> None:
    """Say that the conversation was interrupted, unless OpenHands itself has, or it had finished.

    It waits for the lock of the state, which an agent that is being initialized holds. It does nothing if a newer run
    has begun by then.
    """
    state = conversation.state
    with state:
        if turn is not None:
            if turn.supervised.turn is not turn:
                return
            turn.is_sealed = True
            names.cancel_token(conversation)
        refuse_pending(conversation, _REFUSAL)
        status = state.execution_status
        orphans = ConversationState.get_unmatched_actions(state.active_branch())
        if status in _UNFINISHED or (orphans and status is ConversationExecutionStatus.PAUSED):
            names.answer_orphans(conversation)
            state.execution_status = ConversationExecutionStatus.PAUSED
            names.tell(conversation, InterruptEvent())


def refuse_pending(conversation: Any, reason: str) -> None:
    """Refuse the actions that wait for a confirmation, if any: the next run would take itself for the confirmation."""
    if conversation.state.execution_status is ConversationExecutionStatus.WAITING_FOR_CONFIRMATION:
        conversation.reject_pending_actions(reason)
