"""One call of ``generate``, which a stop ends between two tokens.

The call is ended by a stopping criterion, not by an exception: so ``generate`` leaves its loop as it always does, the
streamer is told of the end, and whoever reads it on another thread goes on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers import StoppingCriteria, StoppingCriteriaList

import stoppable
from stoppable.adapters.transformers.text import NewTokens

_HARD = (stoppable.Mode.IMMEDIATE, stoppable.Mode.KILL)


class _Criterion(StoppingCriteria):
    def __init__(self, is_over: Callable[[Any], bool]) -> None:
        self._is_over = is_over

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:  # noqa: ARG002 - as transformers calls it
        return torch.full((input_ids.shape[0],), self._is_over(input_ids), device=input_ids.device, dtype=torch.bool)


class Generation:
    """One call of ``generate``, which sees each of its tokens, and ends after a stop.

    With ``finish`` a graceful stop lets it finish, as it does with any model call; INTERRUPT then ends it.
    """

    def __init__(self, run: stoppable.Run, tokenizer: Any, *, prompt_length: int | None, finish: bool) -> None:
        self.has_ended: bool = False
        """Whether ``generate`` has returned, and so told its streamer."""
        self._run = run
        self._tokens = None if tokenizer is None else NewTokens(tokenizer, prompt_length)
        self._finish = finish
        self._is_interrupted = False
        self._is_cut = False

    def criterion(self) -> Any:
        """Return the stopping criterion that transformers asks after each token."""
        return _Criterion(self._is_over)

    def _is_over(self, sequences: Any) -> bool:
        if self._tokens is not None:
            self._tokens.read(sequences)
        # A True of should_stop() delivers the stop, so it is asked last: a call that may finish has not noticed it.
        if not self._is_cut and self._may_cut() and stoppable.should_stop():
            self._is_cut = True
        return self._is_cut

    def _may_cut(self) -> bool:
        if not self._finish or not self._run.token.stopped:
            return not self._finish
        receipt = self._run.receipt  # hooks are called a moment later, in which a small model makes many tokens
        return self._is_interrupted or (receipt is not None and receipt.mode in _HARD)

    def run(self, generate: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return what the call returns, or raise the stop that has ended it before its end."""
        criteria = StoppingCriteriaList([*(kwargs.get("stopping_criteria") or ()), self.criterion()])
        with stoppable.on_interrupt(self._interrupt) if self._finish else contextlib.nullcontext():
            result = generate(*args, **{**kwargs, "stopping_criteria": criteria})
        self.has_ended = True
        if self._tokens is not None:
            self._tokens.end(getattr(result, "sequences", result))
        if self._is_cut:
            self._raise_stopped()
        return result

    def _interrupt(self) -> None:
        self._is_interrupted = True

    def _raise_stopped(self) -> None:
        try:
            stoppable.check()
        except stoppable.AgentStopped as stopped:
            stopped.by_force = self._finish  # INTERRUPT has ended it; otherwise it is a stream that was closed
            raise
