"""What a client sees of a run: its lifecycle, what is said, sub-agents, and an end that is true."""

import pytest

from stoppable.server import ServerLimits

from ..openai_api.agents import GATES
from .conftest import (
    HASTY,
    IS_CURRENT,
    Client,
    assert_cancelled,
    connected,
    kinds,
    serving,
    text_of,
    wait_until,
)

needs_1_0 = pytest.mark.skipif(not IS_CURRENT, reason="the package is from before 1.0")
TEXT = ["TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END"]


def test_a_run_has_its_lifecycle_and_every_word():
    with connected("echo") as (service, client):
        events = client.ask("one two three")
        assert kinds(events) == ["RUN_STARTED", *TEXT, "RUN_FINISHED"]
        assert text_of(events) == "one two three "
        names = {"threadId": client.thread, "runId": client.run_id}
        version = {"protocolVersion": "1.0"} if IS_CURRENT else {}
        assert events[0] == {"type": "RUN_STARTED", **names, **version}
        assert events[-1] == {"type": "RUN_FINISHED", **names, "result": "one two three"}
        assert client.said == [("user", "one two three"), ("assistant", "one two three ")]
        record = service.supervisor.blocking.get(client.run_id)
        assert (record.name, record.status, record.key) == ("echo", "completed", f"ag_ui:{client.thread}")


def test_a_value_is_the_result_and_its_text_the_answer():
    with connected("structured") as (_, client):
        events = client.ask("x")
        assert events[-1]["result"] == {"text": "x", "n": 1}
        assert text_of(events) == '{"text":"x","n":1}'


def test_an_agent_that_says_nothing_has_no_message():
    with connected("nothing") as (_, client):
        assert kinds(client.ask("go")) == ["RUN_STARTED", "RUN_FINISHED"]


def test_a_text_that_is_replaced_is_right_in_the_messages():
    with connected("replacing") as (_, client):
        events = client.ask("the answer")
        assert kinds(events) == ["RUN_STARTED", *TEXT, "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
        assert text_of(events) == "a draft", "what was sent cannot be taken back"
        assert client.said == [("user", "the answer"), ("assistant", "the answer")]


def test_items_of_a_generator_are_lines():
    with connected("counting") as (_, client):
        events = client.ask('{"count": 3}')
        assert text_of(events) == "0\n1\n2\n"


def test_what_an_agent_reports_is_an_event_of_its_own():
    with connected("reporting") as (_, client):
        reports = [event for event in client.ask("x") if event["type"] == "CUSTOM"]
        assert reports == [{"type": "CUSTOM", "name": "searching", "value": {"pages": 3}}]


def test_a_run_that_fails_says_why_and_keeps_what_it_had_said():
    with connected("failing") as (_, client):
        events = client.ask("go")
        last = events[-1]
        assert (last["type"], last["code"]) == ("RUN_ERROR", "failed")
        assert last["message"] == "ValueError: the tool is broken"
        [_, answer] = client.messages
        assert (answer["content"], answer["metadata"]["stoppable"]["status"]) == ("before ", "failed")


def test_a_run_that_is_stopped_elsewhere_says_so_and_its_turn_is_sealed():
    with connected("waits") as (service, client):
        with client.stream("go") as stream:
            events = []
            for event in stream:
                events.append(event)
                if event["type"] == "TEXT_MESSAGE_CONTENT":
                    service.supervisor.blocking.stop(client.run_id, reason="enough", actor="ann")
        assert kinds(events) == ["RUN_STARTED", *TEXT[:2], "CUSTOM", TEXT[2], "MESSAGES_SNAPSHOT", kinds(events)[-1]]
        assert_cancelled(events[-1])
        reason = events[-1]["metadata"]["stoppable"]["reason"]
        assert (reason["message"], reason["actor"]) == ("enough", "ann")
        [stopping] = [event for event in events if event["type"] == "CUSTOM"]
        assert stopping["name"] == "stoppable.stopping"
        assert (stopping["value"]["reason"], stopping["value"]["mode"]) == ("enough", "graceful")
        assert client.said == [("user", "go"), ("assistant", "first ")]
        note = client.messages[-1]["metadata"]["stoppable"]
        assert (note["run"], note["status"]) == (client.run_id, "stopped")
        assert note["message"] == "Stopped: enough (ann). Everything it started has ended."


def test_a_thread_that_nothing_can_end_is_named_and_never_called_cancelled():
    with connected("hangs", HASTY) as (service, client):
        with client.stream("go") as stream:
            wait_until(GATES.is_blocking)
            service.supervisor.blocking.stop(client.run_id, reason="enough")
            events = list(stream)
        last = events[-1]
        assert (last["type"], last["code"]) == ("RUN_ERROR", "lost")
        assert last["message"].startswith("The stop is not confirmed: ")
        assert "in hangs, inside threading.wait (thread stoppable hangs) may still be running" in last["message"]
        [name] = last["metadata"]["stoppable"]["alive"]
        assert "hangs" in name
        assert client.messages[-1]["metadata"]["stoppable"]["status"] == "lost"
        assert service.supervisor.blocking.get(client.run_id).status == "lost"
        GATES.release.set()


@needs_1_0
def test_a_client_from_before_1_0_gets_an_error_where_it_would_believe_that_the_run_was_completed():
    with serving() as service:
        client = Client(service.url, "team", version=None)
        with client.stream("wait") as stream:
            wait_until(GATES.reached.is_set)
            service.supervisor.blocking.stop(client.run_id, reason="enough")
            events = list(stream)
        assert "protocolVersion" not in events[0]
        assert (events[-1]["type"], events[-1]["code"]) == ("RUN_ERROR", "stopped")
        assert events[-1]["message"] == "Stopped: enough. Everything it started has ended."
        assert not any(event["type"].startswith("SUBAGENT") for event in events)


# Sub-agents


@needs_1_0
def test_a_sub_agent_is_seen_with_what_it_says():
    with connected("team") as (_, client):
        events = client.ask("tides")
        [started] = [event for event in events if event["type"] == "SUBAGENT_STARTED"]
        child = started["subagentRunId"]
        assert started == {"type": "SUBAGENT_STARTED", "subagentRunId": child, "name": "helper"}
        said = [event["delta"] for event in events if event.get("messageId") == f"msg_{child}" and "delta" in event]
        assert "".join(said) == "tides found "
        [finished] = [event for event in events if event["type"] == "SUBAGENT_FINISHED"]
        assert finished == {"type": "SUBAGENT_FINISHED", "subagentRunId": child, "result": "helped with tides"}
        assert events.index(started) < events.index(finished) < len(events) - 1
        assert text_of(events) == "asking helped with tides"


@needs_1_0
def test_a_sub_agent_of_a_sub_agent_names_its_parent():
    with connected("team") as (_, client):
        events = client.ask("deep")
        first, second = [event for event in events if event["type"] == "SUBAGENT_STARTED"]
        assert "parentSubagentRunId" not in first
        assert second["parentSubagentRunId"] == first["subagentRunId"]
        finished = [event["subagentRunId"] for event in events if event["type"] == "SUBAGENT_FINISHED"]
        assert finished == [second["subagentRunId"], first["subagentRunId"]]


@needs_1_0
def test_a_sub_agent_that_fails_does_not_end_the_run():
    with connected("team") as (_, client):
        events = client.ask("fail")
        [error] = [event for event in events if event["type"] == "SUBAGENT_ERROR"]
        assert (error["code"], error["message"]) == ("failed", "ValueError: the helper is broken")
        assert (events[-1]["type"], events[-1]["result"]) == ("RUN_FINISHED", "without help")


@needs_1_0
def test_a_sub_agent_that_is_stopped_is_closed_before_its_run_and_not_called_finished():
    with connected("team") as (service, client):
        with client.stream("wait") as stream:
            wait_until(GATES.reached.is_set)
            service.supervisor.blocking.stop(client.run_id, reason="enough")
            events = list(stream)
        assert_cancelled(events[-1])
        assert not [event for event in events if event["type"] == "SUBAGENT_FINISHED"]
        [error] = [event for event in events if event["type"] == "SUBAGENT_ERROR"]
        assert error["code"] == "stopped"
        assert error["message"].endswith("Everything it started has ended.")
        # What it has said is its own, and stays where it was.
        assert [text for _, text in client.said] == ["wait", "asking ", "wait found "]
        assert client.messages[-1]["subagentRunId"] == error["subagentRunId"]
        assert text_of(client.ask("tides")) == "asking helped with tides"


@needs_1_0
def test_sub_agents_are_seen_beside_those_of_other_runs_in_a_store_in_a_file(tmp_path):
    with serving(store=f"sqlite:///{tmp_path / 'runs.db'}") as service:
        Client(service.url, "team").ask("before")
        with Client(service.url, "team").stream("wait") as other:
            next(other)
            wait_until(GATES.reached.is_set)
            client = Client(service.url, "team")
            events = client.ask("deep")
        assert len([event for event in events if event["type"] == "SUBAGENT_FINISHED"]) == 2
        assert client.said[:2] == [("user", "deep"), ("assistant", "asking helped with below")]
        assert {text for _, text in client.said[2:]} == {"deep found ", "below found "}
        first, second = [event for event in events if event["type"] == "SUBAGENT_STARTED"]
        assert second["parentSubagentRunId"] == first["subagentRunId"]


# The stream itself


def test_no_more_streams_than_there_may_be_are_opened_and_nothing_is_started_for_one():
    with serving(limits=ServerLimits(streams=1)) as service:
        with Client(service.url, "waits").stream("one") as stream:
            next(stream)
            wait_until(GATES.reached.is_set)
            refused = Client(service.url, "waits")
            with pytest.raises(Exception, match="too_many_streams"):
                refused.ask("two")
            assert GATES.calls == ["one"]


def test_comments_keep_an_idle_stream_open_and_clients_ignore_them():
    with connected("waits", limits=ServerLimits(heartbeat=0.01)) as (_, client):
        with client.stream("go") as stream:
            events = [next(stream)]
            wait_until(GATES.reached.is_set)
            GATES.release.set()
            events += list(stream)
        assert text_of(events) == "first second third"


def test_a_server_that_shuts_down_ends_a_stream_with_the_end_of_its_run():
    with connected("waits") as (service, client):
        with client.stream("go") as stream:
            next(stream)
            service.stop()
            last = list(stream)[-1]
        assert_cancelled(last)
        assert last["metadata"]["stoppable"]["reason"]["kind"] == "shutdown"
