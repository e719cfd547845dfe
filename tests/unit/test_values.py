"""What an agent process sends: only our own messages are made of it, and values are unpickled only by choice."""

import os
import pickle
import socket
import struct
import subprocess
import sys

import pytest
from tests import worker_agents

import stoppable
from stoppable._engine.isolation.messages import (
    Item,
    MessageSocket,
    PartialReported,
    ProgressReported,
    Values,
    load_message,
)


class Exploit:
    """Unpickled, it makes a directory."""

    def __init__(self, path):
        self._path = str(path)

    def __reduce__(self):
        return os.mkdir, (self._path,)


@pytest.fixture
def lines():
    """Our end of a line, and the socket that an agent process has of it."""
    ours, theirs = socket.socketpair()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        line = MessageSocket(ours, process, Values.JSON)
        yield line, theirs
        line.close()
        theirs.close()
        process.kill()


def send(theirs, packed, length=None):
    theirs.sendall(struct.pack("!Q", len(packed) if length is None else length) + packed)


@pytest.mark.parametrize(
    "hide", [lambda bad: bad, lambda bad: PartialReported("run", bad, False), lambda bad: {"a": [bad]}]
)
def test_a_message_that_would_execute_something_is_refused(lines, tmp_path, hide):
    line, theirs = lines
    send(theirs, pickle.dumps(hide(Exploit(tmp_path / "made"))))
    with pytest.raises(pickle.UnpicklingError, match="not part of a message"):
        line.receive()
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "message", [PartialReported("run", b"", False), Item(b""), ProgressReported("run", "kind", b"")]
)
def test_a_value_that_would_is_refused_where_values_are_json(lines, tmp_path, message):
    line, theirs = lines
    name = "data" if isinstance(message, ProgressReported) else "value"
    object.__setattr__(message, name, pickle.dumps(Exploit(tmp_path / "made")))
    send(theirs, pickle.dumps(message))
    with pytest.raises(ValueError, match="decode"):
        line.receive()
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("name", ["lock", "Sender", "os.system", "pickle"])
def test_only_classes_of_messages_are_found(name):
    with pytest.raises((pickle.UnpicklingError, AttributeError)):
        load_message(b"cstoppable._engine.wire\n" + name.encode() + b"\n)R.")


def test_a_message_without_end_is_the_end_of_the_line(lines):
    line, theirs = lines
    send(theirs, b"", length=1 << 60)
    assert line.receive() is None


@pytest.mark.parametrize("unpickle", [True, False])
async def test_results_come_as_they_are_or_as_json(unpickle):
    async with stoppable.Supervisor(unpickle=unpickle) as supervisor:
        handle = await supervisor.start(worker_agents.a_tuple, isolation="process")
        assert await handle.result() == ((1, 2) if unpickle else [1, 2])


@pytest.mark.parametrize("unpickle", [True, False])
async def test_items_and_partials_too(unpickle):
    async with stoppable.Supervisor(unpickle=unpickle) as supervisor:
        handle = await supervisor.start(worker_agents.tuples, isolation="process")
        found = [item async for item in handle.stream()]
        assert found == ([(1, 2), (3, 4)] if unpickle else [[1, 2], [3, 4]])
        assert (await handle.outcome()).partial == ((1, 2) if unpickle else [1, 2])


@pytest.mark.parametrize(
    ("agent", "name", "kind", "text"),
    [
        (worker_agents.raises_builtin, "ValueError", ValueError, "mine"),
        (worker_agents.raises_key_error, "KeyError", RuntimeError, "'mine'"),
        (worker_agents.raises_own, "Own", RuntimeError, "mine"),
        (worker_agents.raises_unprintable, "Unprintable", RuntimeError, "it cannot be shown"),
    ],
)
async def test_an_error_keeps_its_name_its_text_and_its_traceback(agent, name, kind, text):
    async with stoppable.Supervisor(unpickle=False) as supervisor:
        handle = await supervisor.start(agent, isolation="process")
        outcome = await handle.outcome()
        assert outcome.status == "failed"
        assert isinstance(outcome.error, kind)
        assert type(outcome.error).__name__ == name
        assert str(outcome.error) == text
        assert agent.__name__ in outcome.error.__notes__[0]
        record = await handle.record()
        assert record.outcome.error.type == name
