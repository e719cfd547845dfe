"""What a turn of a conversation has done when a stop ends it, and how the rest of it gets into its history."""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import stoppable

__all__ = ["MAY_HAVE_TAKEN_EFFECT", "NOT_KNOWN", "NO_EFFECT", "AnswerKind", "CallAnswer", "Turn"]

NO_EFFECT = "The run was stopped before this call began: it had no effect."
"""What the model is told of a tool call that never began."""

MAY_HAVE_TAKEN_EFFECT = "The run was stopped while this call was in flight: it may have taken effect."
"""What the model is told of a tool call that began and has no result."""

NOT_KNOWN = "The run ended before this call was answered: it may have taken effect."
"""What the model is told of a call in a history that a turn of another process has left."""

_logger = logging.getLogger("stoppable")


class AnswerKind(StrEnum):
    """What is known of a tool call when its turn has been stopped."""

    RESULT = "result"
    NO_EFFECT = "no_effect"
    MAY_HAVE_TAKEN_EFFECT = "may_have_taken_effect"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallAnswer:
    """The answer to a tool call, for the history of a turn that was stopped."""

    call_id: Hashable
    kind: AnswerKind
    result: Any = None
    """What the tool returned; None if there is no result."""

    @property
    def text(self) -> str:
        """The result as text, or the sentence that says what became of the call."""
        match self.kind:
            case AnswerKind.RESULT:
                return self.result if isinstance(self.result, str) else str(self.result)
            case AnswerKind.NO_EFFECT:
                return NO_EFFECT
            case AnswerKind.MAY_HAVE_TAKEN_EFFECT:
                return MAY_HAVE_TAKEN_EFFECT

    @property
    def is_result(self) -> bool:
        """Whether the tool has returned."""
        return self.kind is AnswerKind.RESULT


_UNFINISHED = object()


class Turn:
    """What one turn has done that is not in its history yet: tool calls, their results, and text.

    Frameworks save a step of a turn when it is complete. If a stop ends the turn before, the model would repeat effects
    that it cannot see, and providers refuse a history in which a tool call has no answer. An adapter tells the turn
    what happens, and writes the rest when it was stopped:

        turn.request("call-1", "call-2")       # the model asks for two tools
        turn.begin("call-1")
        turn.finish("call-1", result)
        turn.say("I have ")                    # a piece of text that a model streams
        await turn.seal(write)                 # after a stop: write() adds turn.answers() and turn.text

    Call ids are whatever tells the calls of a turn apart. All methods may be called on any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requested: dict[Hashable, None] = {}  # in the order of the model
        self._results: dict[Hashable, Any] = {}  # of the calls that have begun
        self._texts: dict[Hashable, list[str]] = {}
        self._is_sealed = False

    # What happens in it

    def request(self, *call_ids: Hashable) -> None:
        """Note that the model asks for tools."""
        with self._lock:
            self._requested.update(dict.fromkeys(call_ids))

    def begin(self, call_id: Hashable) -> None:
        """Note that a call begins, also if it is repeated; from now on it may take effect."""
        with self._lock:
            self._results[call_id] = _UNFINISHED

    def finish(self, call_id: Hashable, result: Any) -> None:
        """Note what a call has returned, or the error that the framework makes an answer of."""
        with self._lock:
            self._results[call_id] = result

    def say(self, text: str, speaker: Hashable = None) -> None:
        """Note a piece of text that a model streams; the text of each speaker, such as an agent, is kept apart."""
        with self._lock:
            self._texts.setdefault(speaker, []).append(text)

    def forget_text(self, speaker: Hashable = None) -> None:
        """Forget what a speaker has said, because the history has it."""
        with self._lock:
            self._texts.pop(speaker, None)

    def clear(self) -> None:
        """Forget all calls and texts, because the history has them."""
        with self._lock:
            self._requested, self._results, self._texts = {}, {}, {}

    # What is written after a stop

    @property
    def text(self) -> str:
        """What was said and is not in the history, of all speakers."""
        return "".join(self.texts().values())

    def texts(self) -> dict[Hashable, str]:
        """Return what each speaker has said."""
        with self._lock:
            return {speaker: "".join(pieces) for speaker, pieces in self._texts.items()}

    def has_begun(self, call_id: Hashable) -> bool:
        """Return whether a call has begun."""
        with self._lock:
            return call_id in self._results

    def answer(self, call_id: Hashable) -> CallAnswer:
        """Return the answer to a call, also to one that was never noted: it has not begun."""
        with self._lock:
            if call_id not in self._results:
                return CallAnswer(call_id=call_id, kind=AnswerKind.NO_EFFECT)
            result = self._results[call_id]
        if result is _UNFINISHED:
            return CallAnswer(call_id=call_id, kind=AnswerKind.MAY_HAVE_TAKEN_EFFECT)
        return CallAnswer(call_id=call_id, kind=AnswerKind.RESULT, result=result)

    def answers(self, answered: Iterable[Hashable] = ()) -> list[CallAnswer]:
        """Return the answers to the calls that the model asked for, in its order, but not to those ``answered``."""
        answered_ids = set(answered)
        with self._lock:
            requested = [call_id for call_id in self._requested if call_id not in answered_ids]
        return [self.answer(call_id) for call_id in requested]

    async def seal(self, write: Callable[[], Awaitable[object]], seconds: float = 5.0) -> bool:
        """Call ``write`` if the current run was stopped, once per turn, and return whether it has written.

        ``write`` has up to ``seconds`` in which the stop has no effect. It is outside the run, so that the store of the
        history is no call in flight. An error of it is logged: whoever waits for the run still gets the stop.
        """
        run = stoppable.current_run()
        if run is None or not run.token.stopped:
            return False
        with self._lock:
            is_sealed, self._is_sealed = self._is_sealed, True
        if is_sealed:
            return False
        with stoppable.shielded(seconds), stoppable.detached():
            try:
                await write()
            except Exception:
                _logger.exception("the history of the stopped run %s could not be completed", run.id)
                return False
        return True
