"""What a process that is measured says to the one that measures, through a socket in a folder."""

from __future__ import annotations

import os
import socket

from scratch import folder

_NAME = "PEER_REPORTS"


class Reports:
    """The end that listens; ``environment`` tells a process where."""

    def __init__(self) -> None:
        path = str(folder() / "reports")
        self.environment: dict[str, str] = {_NAME: path}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(path)
        self._socket.settimeout(60)

    def next(self) -> str:
        """Wait for a report."""
        return self._socket.recv(100).decode()

    def close(self) -> None:
        self._socket.close()


class Report:
    """The end that speaks."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    @classmethod
    def of_environment(cls) -> Report:
        return cls(os.environ[_NAME])

    def send(self, text: str) -> None:
        self._socket.sendto(text.encode(), self._path)
