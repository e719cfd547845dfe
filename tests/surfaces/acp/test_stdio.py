"""``stoppable acp``: wrong messages are answered, and its end leaves nothing running."""

import asyncio
import json
import signal
import subprocess

import pytest
from tests.waiting import wait_until

from stoppable import Supervisor

from .conftest import DEADLINE, OWN, PLAIN, ROOT, ask, command, open_session, send, started

CORPUS = [
    ("{", -32700),
    ('{"jsonrpc": "2.0", "id": 7, "method": "initialize", "params": {"protocolVersion": NaN}}', -32700),
    ("[" * 10_000, -32700),
    ("\u0000", -32700),
    ("[]", -32600),
    ("null", -32600),
    ('"x"', -32600),
    ("7", -32600),
    ('{"jsonrpc": "2.0"}', -32600),
    ('{"jsonrpc": "2.0", "id": 7}', -32600),
    ('{"jsonrpc": "2.0", "id": {}, "method": "initialize"}', -32600),
    ('{"jsonrpc": "2.0", "id": 7, "method": []}', -32600),
    ('{"jsonrpc": "2.0", "id": 7, "method": "nothing"}', -32601),
    ('{"jsonrpc": "2.0", "id": 7, "method": "_own"}', -32601),
    ('{"jsonrpc": "2.0", "id": 7, "method": "session/set_mode", "params": {"sessionId": "a", "modeId": "b"}}', -32601),
    ('{"jsonrpc": "2.0", "id": 7, "method": "session/prompt"}', -32602),
    ('{"jsonrpc": "2.0", "id": 7, "method": "session/prompt", "params": []}', -32602),
    ('{"jsonrpc": "2.0", "id": 7, "method": "session/prompt", "params": {"sessionId": 1, "prompt": {}}}', -32602),
    ('{"jsonrpc": "2.0", "id": 7, "method": "session/prompt", "params": {"sessionId": "x", "prompt": []}}', -32002),
    ('{"jsonrpc": "2.0", "id": 7, "method": "session/load", "params": {"sessionId": "\\u0000", "cwd": "/"}}', -32602),
    (
        json.dumps({"id": 7, "method": "session/load", "params": {"sessionId": "\0", "cwd": "/", "mcpServers": []}}),
        -32002,
    ),
]
SILENT = [
    "",
    '{"jsonrpc": "2.0", "id": {}, "result": 1}',
    '{"jsonrpc": "2.0", "id": 7, "error": null}',
    '{"jsonrpc": "2.0", "method": "nothing"}',
    '{"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": []}}',
    '{"jsonrpc": "2.0", "method": "session/cancel", "params": 7}',
]


def test_wrong_messages_are_answered_and_it_goes_on():
    with started(f"{PLAIN}:echo") as process:
        for line, code in CORPUS:
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline())
            assert answer["error"]["code"] == code, (line[:100], answer)
        for line in SILENT:
            process.stdin.write(f"{line}\n")
        process.stdin.flush()
        session = open_session(process)["result"]["sessionId"]
        meta = {"session_id": "another", "prompt": 1, "self": 2}
        prompt = [{"type": "text", "text": "still here"}]
        answer = ask(process, "session/prompt", {"sessionId": session, "prompt": prompt, "_meta": meta})
        assert answer["result"]["stopReason"] == "end_turn"
        process.stdin.close()
        assert process.wait(DEADLINE) == 0


def begin(process, path):
    """Start a turn, and return once it is at work."""
    session = open_session(process)["result"]["sessionId"]
    text = json.dumps({"path": str(path)})
    send(process, "session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": text}]}, 2)
    wait_until(path.exists, DEADLINE)


@pytest.mark.parametrize(
    ("how", "code"), [("end of input", 0), ("end of output", 0), (signal.SIGTERM, 143), (signal.SIGINT, 143)], ids=str
)
def test_its_end_stops_the_agent_and_that_is_in_the_store(tmp_path, how, code):
    store, path = f"sqlite:///{tmp_path}/runs.db", tmp_path / "agent"
    with started(f"{OWN}:marking", "--store", store) as process:
        begin(process, path)
        match how:
            case "end of input":
                process.stdin.close()
            case "end of output":
                process.stdout.close()
            case _:
                process.send_signal(how)
        assert process.wait(DEADLINE) == code
        assert path.with_suffix(".left").exists()
    run = only_run(store)
    assert (run.name, run.status) == ("marking", "stopped")
    if isinstance(how, str):
        assert (run.reason.kind, run.reason.source) == ("disconnect", "acp")


def test_an_agent_that_nothing_can_end_does_not_hold_it_up(tmp_path):
    store, path = f"sqlite:///{tmp_path}/runs.db", tmp_path / "agent"
    with started(f"{OWN}:hanging", "--store", store) as process:
        begin(process, path)
        process.stdin.close()
        assert process.wait(DEADLINE) == 0
    assert only_run(store).status == "lost"


def only_run(store):
    async def look():
        async with Supervisor(store) as supervisor:
            [run] = (await supervisor.list()).runs
            return run

    return asyncio.run(look())


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("nobody.has.this:agent",), 3, "nobody"),
        ((PLAIN + ":AGENTS",), 2, "several agents"),
        ((f"{PLAIN}:echo", "--store", "sqlite:///no/such/folder/runs.db"), 5, "runs.db"),
    ],
)
def test_its_errors_are_on_stderr(arguments, code, message):
    done = subprocess.run(
        command(*arguments),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert message in done.stderr
