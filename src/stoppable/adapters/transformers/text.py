"""The text of a generation, which becomes the partial of the run while its tokens arrive."""

from __future__ import annotations

import itertools
from typing import Any

import stoppable

_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


class NewTokens:
    """The tokens of one call of ``generate``.

    A stopping criterion is shown the sequences after each token. In assisted generation these may end with guesses, but
    never twice in a row: a token that is still there the next time is one that was generated.
    """

    def __init__(self, tokenizer: Any, prompt_length: int | None) -> None:
        self._tokenizer = tokenizer
        self._prompt_length = prompt_length
        self._text = PartialText(tokenizer)
        self._has_begun = False
        self._read = 0
        """How much of a sequence is the prompt, or is in the text."""
        self._last: list[int] = []
        self._has_one_sequence = True

    def read(self, sequences: Any) -> None:
        """Read the tokens so far."""
        count, length = sequences.shape
        if not self._has_begun:
            self._has_begun = True
            self._has_one_sequence = count == 1
            prompt = self._prompt_length
            self._read = prompt if prompt is not None and prompt < length else length - 1
        if self._has_one_sequence:  # beams change places, and the pieces of a batch would be mixed
            tokens = sequences[0, self._read :].tolist()
            both = zip(self._last, tokens, strict=False)
            generated = [token for token, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], both)]
            self._text.add(generated)
            self._read += len(generated)
            self._last = tokens[len(generated) :]

    def end(self, sequences: Any) -> None:
        """Read the result, unless it is of a kind of its own; of several sequences, each is added with a line end."""
        has_tokens = getattr(sequences, "ndim", 0) == 2 and sequences.shape[1] >= self._read
        if self._has_begun and self._has_one_sequence:
            self._text.add(sequences[0, self._read :].tolist() if has_tokens else self._last)
            self._text.end()
        elif self._has_begun and has_tokens:
            for text in self._tokenizer.batch_decode(sequences[:, self._read :], skip_special_tokens=True):
                stoppable.append_partial(text + "\n")


class PartialText:
    """Adds the text of each new token to the partial of the run.

    What a token means depends on the one before it, and a character may consist of several tokens. So the tokens since
    the last piece of text are decoded together with those of that piece, and only what is new is added.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._piece: list[int] = []
        self._piece_text = ""
        self._new: list[int] = []

    def add(self, tokens: list[int]) -> None:
        """Add tokens; a character that is not complete waits for the next ones."""
        if tokens:
            self._new += tokens
            text = self._decode(self._piece + self._new)
            if not text.endswith(_INCOMPLETE):
                self._append(text)

    def end(self) -> None:
        """Add what waits for tokens that do not come."""
        if self._new:
            self._append(self._decode(self._piece + self._new))

    def _append(self, text: str) -> None:
        delta = text[len(self._piece_text) :]
        if delta:  # a token without a text is no piece: what comes next would be taken for the beginning of a text
            stoppable.append_partial(delta)
            self._piece, self._new = self._new, []
            self._piece_text = self._decode(self._piece)

    def _decode(self, tokens: list[int]) -> str:
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=True)
        return text
