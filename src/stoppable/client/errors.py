"""Errors between a client and a server; all others are those of the supervisor."""

from __future__ import annotations

from stoppable.errors import StoppableError


class ServerUnreachable(StoppableError, ConnectionError):
    """No server answered within ``retry_seconds``; it is unknown whether it received the request."""

    def __init__(self, url: str, detail: str = "") -> None:
        super().__init__(url, detail)
        self.url = url
        self.detail = detail

    def __str__(self) -> str:
        why = f" ({self.detail})" if self.detail else ""
        return (
            f"no stoppable server answers at {self.url}{why}: start one with `stoppable serve`, "
            "or say where it is with STOPPABLE_URL"
        )


class NotAllowed(StoppableError, PermissionError):
    """The server requires a key, or the key lacks the permission."""


class ServerError(StoppableError):
    """Unexpected response from the server; ``status`` and ``code`` are those of the response."""

    def __init__(self, message: str, status: int, code: str = "") -> None:
        super().__init__(message, status, code)
        self.status = status
        self.code = code

    def __str__(self) -> str:
        return str(self.args[0])
