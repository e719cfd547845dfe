"""What the harness measures with: the model server, the log of effects, and the processes below it."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from tests.waiting import wait_until

from stopbench import processes
from stopbench.model_server import ModelServer, refusal
from stopbench.scenarios import ANSWER, FIRST, LAST_MOMENT, MODEL_CALL, NEXT, PARALLEL, SCENARIOS, STREAM, SUB_AGENT
from stopbench.tools import EFFECTS, EffectLog, make_tools

USER = {"role": "user", "content": FIRST}
ASKS = {"role": "assistant", "tool_calls": [{"id": "1"}, {"id": "2"}]}
RESULTS = [{"role": "tool", "tool_call_id": number, "content": "done"} for number in "12"]


def ask(server, *messages):
    body = json.dumps({"messages": [USER, *messages]}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{server.url}/chat/completions", body), timeout=60) as answer:
        return json.load(answer)["choices"][0]["message"]


def send_raw(server, *, stream):
    address = server.url.split("/")[2].split(":")
    client = socket.create_connection((address[0], int(address[1])), timeout=60)
    body = json.dumps({"messages": [USER], "stream": stream}).encode()
    client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: m\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    return client


@pytest.mark.parametrize(
    ("messages", "is_refused"),
    [
        ([USER, ASKS, *RESULTS, USER], False),
        ([USER, ASKS, *RESULTS[::-1]], False),
        ([USER, USER], False),
        ([USER, ASKS, USER], True),
        ([USER, ASKS, RESULTS[0], USER], True),
        ([USER, ASKS, USER, *RESULTS], True),
        ([USER, ASKS], True),
        ([USER, RESULTS[0]], True),
        ([USER, ASKS, *RESULTS, RESULTS[0]], True),
    ],
)
def test_a_provider_refuses_a_call_without_a_result_and_a_result_without_a_call(messages, is_refused):
    assert (refusal(messages) is not None) == is_refused


def test_the_model_asks_for_the_tools_of_the_scenario_again_and_again():
    with ModelServer(PARALLEL) as server:
        for _ in range(2):
            asked = ask(server)["tool_calls"]
            assert [call["function"]["name"] for call in asked] == ["look_up", "book_sync", "book_async"]
            assert len({call["id"] for call in asked}) == 3
        assert [request.ending for request in server.requests] == ["sent", "sent"]
        assert server.answered is None


def test_the_model_delegates_first_in_the_scenario_of_the_sub_agent():
    with ModelServer(SUB_AGENT, "input") as server:
        [call] = ask(server)["tool_calls"]
        assert call["function"] == {"name": "helper", "arguments": '{"input": "Book a trip."}'}
        assert ask(server)["tool_calls"][0]["function"]["name"] == "book_async"


def test_it_notes_when_the_last_answer_was_sent_but_not_that_of_the_next_turn():
    with ModelServer(LAST_MOMENT) as server:
        assert ask(server, {"role": "user", "content": NEXT})["content"] == "Fine."
        assert server.answered is None
        assert ask(server)["content"] == ANSWER
        wait_until(lambda: server.answered is not None)


def test_a_conversation_that_it_refuses_gets_an_error_and_is_noted():
    with ModelServer(PARALLEL) as server:
        with pytest.raises(urllib.error.HTTPError) as error:
            ask(server, ASKS)
        assert error.value.code == 400
        assert "has no result" in error.value.read().decode()
        error.value.close()
        assert [request.ending for request in server.requests] == ["refused"]


@pytest.mark.parametrize("stream", [False, True])
def test_it_stops_producing_tokens_when_its_client_leaves(stream):
    with ModelServer(STREAM if stream else MODEL_CALL) as server:
        with send_raw(server, stream=stream):
            wait_until(lambda: len(server.tokens()) >= 2)
        wait_until(lambda: server.requests[0].ending)
        assert server.requests[0].ending == "closed"
        assert len(server.tokens()) < (100 if stream else 20)
        assert server.answered is None


def test_a_tool_writes_each_of_its_effects_in_order(tmp_path):
    tools = {tool.__name__: tool for tool in make_tools(tmp_path / "log")}
    assert asyncio.run(tools["book_async"]()) == "book_async done"
    events = EffectLog(tmp_path / "log").events()
    assert [event.kind for event in events] == ["begin", *["effect"] * EFFECTS, "done"]
    assert [event.at for event in events] == sorted(event.at for event in events)
    assert {(event.pid, event.tool) for event in events} == {(os.getpid(), "book_async")}


def test_the_moment_of_the_stop_depends_on_the_seed_only():
    for scenario in SCENARIOS.values():
        counts = [scenario.count(str(seed)) for seed in range(50)]
        assert counts == [scenario.count(str(seed)) for seed in range(50)]
        assert set(counts) == set(range(scenario.least, scenario.most + 1))


TREE = """
import os, subprocess, sys, time
from pathlib import Path
from stopbench import processes
from stopbench.tools import COMMAND

processes.adopt_orphans()
log = sys.argv[1]
parent = subprocess.Popen([sys.executable, "-S", "-E", COMMAND, log, "tree"])
deadline = time.monotonic() + 60
while len(processes.commands()) < 2 and time.monotonic() < deadline:
    time.sleep(0.005)
both = len(processes.commands())
parent.kill()
parent.wait()
orphan = len(processes.commands())
processes.kill_descendants(spare=())
print(both, orphan, len(processes.descendants()))
"""


def test_a_command_in_a_session_of_its_own_is_found_when_its_parent_has_ended_and_nothing_is_left(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", TREE, str(tmp_path / "log")], capture_output=True, text=True, timeout=100, check=True
    )
    assert done.stdout.split() == ["2", "1", "0"]


def test_a_process_that_has_been_killed_counts_as_ended():
    child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert child.pid in processes.descendants()
        os.kill(child.pid, signal.SIGKILL)
        assert child.pid not in processes.descendants()
    finally:
        child.kill()
        child.wait()
        child.stdin.close()
