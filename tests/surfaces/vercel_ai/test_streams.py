"""What a page sees of a turn: text, tools, sub-agents and its end; and what a second page sees of it."""

import pytest

from stoppable.adapters import turn
from stoppable.server import ServerLimits
from stoppable.server.surfaces import ends

from ..openai_api.agents import GATES
from .conftest import (
    HASTY,
    PATIENT,
    Client,
    Refused,
    assert_aborted,
    connected,
    ended,
    facts_of,
    kinds,
    only,
    runs,
    serving,
    text_of,
    wait_until,
)

TEXT = ["text-start", "text-delta", "text-end"]
END = ["finish-step", "finish"]


@pytest.fixture(scope="module")
def open_server():
    with serving() as service:
        yield service


def test_an_answer_is_one_message_whose_metadata_names_the_run(open_server):
    client = Client(open_server.url, "echo")
    parts = client.ask("high tides")
    assert kinds(parts) == ["start", "start-step", *TEXT, *END]
    assert parts[0]["messageId"] == f"msg_{client.run_id}"
    assert text_of(parts) == "high tides "
    run = open_server.supervisor.blocking.get(client.run_id)
    assert (run.name, run.key, run.status) == ("echo", f"vercel:{client.chat}", "completed")
    assert facts_of(parts) == {"run": run.id, "status": "completed", "message": "Completed.", "alive": []}


def test_the_items_of_a_generator_and_a_value_that_is_no_text(open_server):
    assert text_of(Client(open_server.url, "counting").ask('{"count": 3}')) == "0\n1\n2\n"
    parts = Client(open_server.url, "structured").ask("x")
    assert only(parts, "data-result")["data"] == {"text": "x", "n": 1}
    assert text_of(parts) == '{"text":"x","n":1}'


def test_an_agent_that_says_nothing_has_an_empty_message(open_server):
    assert kinds(Client(open_server.url, "nothing").ask("x")) == ["start", "start-step", *END]


def test_text_and_tools_keep_their_order(open_server):
    parts = Client(open_server.url, "tooling").ask("x")
    tool = ["tool-input-available", "tool-output-available"]
    assert kinds(parts) == ["start", "start-step", *TEXT, *tool, *TEXT, *END], "a model call is no tool"
    call, output = only(parts, tool[0]), only(parts, tool[1])
    assert (call["toolName"], call["input"], output["output"]) == ("search", {}, {"fate": "finished"})
    assert call["toolCallId"] == output["toolCallId"]
    assert all(part["providerExecuted"] and part["dynamic"] for part in (call, output)), "no page executes it"
    assert len({part["id"] for part in parts if part["type"] == "text-start"}) == 2


def test_what_an_agent_reports_is_data_that_the_next_of_its_kind_replaces(open_server):
    parts = [part for part in Client(open_server.url, "reporting").ask("tides") if part["type"].startswith("data-")]
    assert parts == [
        {"type": "data-searching", "id": "searching", "data": {"pages": 3}},
        {"type": "data-source", "id": "a", "data": {"id": "a", "title": "draft"}},
        {"type": "data-source", "id": "a", "data": {"id": "a", "title": "tides"}},
    ]


def test_a_sub_agent_is_data_that_its_end_replaces(open_server):
    parts = Client(open_server.url, "team").ask("tides")
    begun, over = [part for part in parts if part["type"] == "data-subagent"]
    assert begun["id"] == over["id"]
    assert (begun["data"]["name"], over["data"]["status"]) == ("helper", "completed")
    assert over["data"]["text"] == "tides found "
    assert text_of(parts) == "asking helped with tides", "what it says is not what the agent says"


def test_the_tool_of_a_sub_agent_is_shown(open_server):
    parts = Client(open_server.url, "lead").ask("x")
    assert only(parts, "tool-output-available")["toolCallId"] == only(parts, "tool-input-available")["toolCallId"]


def test_an_agent_that_fails_is_an_error_that_says_why(open_server):
    parts = Client(open_server.url, "failing").ask("x")
    assert kinds(parts)[-3:] == ["message-metadata", "finish-step", "error"]
    assert parts[-1]["errorText"] == "ValueError: the tool is broken"
    assert facts_of(parts)["status"] == "failed"
    assert text_of(parts) == "before "


def test_a_turn_that_could_not_be_stopped_is_an_error_and_no_abort():
    with connected("hangs", HASTY) as (_, client):
        with client.stream("go") as stream:
            wait_until(GATES.is_blocking)
            client.stop()
            parts = list(stream)
        assert "abort" not in kinds(parts)
        assert parts[-1]["errorText"].startswith("The stop is not confirmed: ")
        facts = facts_of(parts)
        assert facts["status"] == "lost"
        assert "hangs" in facts["alive"][0]


def test_comments_keep_an_idle_stream_open():
    with connected("waits", limits=ServerLimits(heartbeat=0.01)) as (_, client):
        with client.stream("go") as stream:
            parts = [next(stream)]
            wait_until(GATES.reached.is_set)
            GATES.release.set()
            parts += list(stream)
        assert text_of(parts) == "first second third"


def test_a_server_that_shuts_down_ends_a_stream_with_the_end_of_its_turn():
    with connected("waits") as (service, client):
        with client.stream("go") as stream:
            parts = [next(stream)]
            service.stop()
            parts += stream
        assert_aborted(parts, client.run_id)


def test_no_more_streams_than_there_may_be_are_opened_and_nothing_is_started_for_one():
    with serving(limits=ServerLimits(streams=1)) as service:
        first = Client(service.url, "waits")
        with first.stream("one") as stream:
            next(stream)
            wait_until(GATES.reached.is_set)
            with pytest.raises(Refused, match="too_many_streams"):
                Client(service.url, "waits").ask("two")
            with pytest.raises(Refused, match="too_many_streams"), first.resume():
                pass
            assert GATES.calls == ["one"]


# A second page


def test_a_turn_that_is_at_work_is_answered_from_its_start_and_leaving_that_stops_nothing():
    with connected("waits") as (service, client):
        with client.stream("go") as stream:
            parts = [next(stream)]
            wait_until(GATES.reached.is_set)
            with client.resume() as second:
                assert next(second) == parts[0]
            with client.resume() as second:
                again = [next(second)]
                GATES.release.set()
                again += second
            parts += stream
        assert text_of(again) == text_of(parts) == "first second third"
        assert [part for part in again if part["type"] != "text-delta"] == [
            part for part in parts if part["type"] != "text-delta"
        ]
        assert ended(service, client.run_id).stop is None
        with client.resume() as third:
            assert third is None, "it has ended"


def test_there_is_nothing_to_resume_in_a_chat_that_nobody_has_begun(open_server):
    with Client(open_server.url, "echo").resume() as stream:
        assert stream is None


def test_there_is_nothing_to_resume_of_another_agent():
    with connected("waits") as (_, client):
        with client.stream("go") as stream:
            next(stream)
            with Client(client.url, "echo", client.chat).resume() as other:
                assert other is None


def test_a_page_that_resumes_while_a_stop_works_sees_its_end():
    with connected("tooling", PATIENT) as (service, client):
        with client.stream("wait") as stream:
            wait_until(GATES.reached.is_set)
            client.stop()
            with client.resume() as second:
                GATES.release.set()
                parts = list(second)
            list(stream)
        assert_aborted(parts, client.run_id)
        assert len(runs(service)) == 1


def test_the_words_for_a_call_are_those_of_the_adapters():
    assert ends.NO_EFFECT == turn.NO_EFFECT
    assert ends.MAY_HAVE_TAKEN_EFFECT == turn.MAY_HAVE_TAKEN_EFFECT
    assert ends.NOT_KNOWN == turn.NOT_KNOWN
