"""A client that leaves stops what it has started, and its next run knows what was kept."""

import json
import socket
import threading

import httpx
import pytest

from stoppable.server import Principal, ServerLimits
from stoppable.server.surfaces import ag_ui, surface

from ..openai_api.agents import GATES
from .conftest import (
    DEADLINE,
    HASTY,
    IS_CURRENT,
    Client,
    Refused,
    assert_cancelled,
    connected,
    ended,
    kinds,
    runs,
    serving,
    stop,
    text_of,
    wait_until,
)


def left_at_work(client, marks, work):
    """Leave the stream of an agent that works in four ways."""
    with client.stream(work) as stream:
        while next(stream)["type"] != "TEXT_MESSAGE_CONTENT":
            pass
        wait_until(marks.have_begun)


@pytest.mark.parametrize("agent", ["research", "crew"])
def test_a_client_that_leaves_stops_all_that_an_agent_has_started(agent, marks, work):
    with connected(agent) as (service, client):
        left_at_work(client, marks, work)
        run = ended(service)
        assert marks.still_there() == [], "nothing is left that could leave a mark"
        assert (run.id, run.status) == (client.run_id, "stopped")
        assert (run.reason.kind, run.reason.source, run.mode) == ("disconnect", "ag_ui", "graceful")
        assert str(service.supervisor.blocking.get(run.id).outcome.partial)


@pytest.mark.parametrize("agent", ["research", "crew"])
def test_a_stop_elsewhere_ends_all_that_an_agent_has_started_before_it_is_told(agent, marks, work):
    with connected(agent) as (service, client):
        with client.stream(work) as stream:
            wait_until(marks.have_begun)
            stopper = threading.Thread(target=stop, args=(service, client.run_id))
            stopper.start()
            for event in stream:
                last = event
                if event["type"] in {"RUN_FINISHED", "RUN_ERROR"}:
                    assert marks.still_there() == [], "nothing is left that could leave a mark"
        stopper.join()  # it reads its receipt, for which the server must be there
        assert_cancelled(last)


def test_the_run_after_one_that_was_left_begins_with_what_was_kept(marks, work):
    with connected("research") as (service, client):
        with client.stream(work) as stream:
            next(stream)
            wait_until(marks.have_begun)
        assert [role for role, _ in client.said] == ["user"], "it has not read the answer"
        left = client.run_id
        client.agent = "chatting"
        events = client.ask("and now")
        # Twice, because a client appends what it does not know: the first one has it before the question.
        assert kinds(events)[:2] == ["RUN_STARTED", "MESSAGES_SNAPSHOT"]
        roles = [[one["role"] for one in event["messages"]] for event in events if event["type"] == "MESSAGES_SNAPSHOT"]
        assert roles == [["user", "assistant"], ["user", "assistant", "user"]]
        answer = client.messages[1]
        assert (answer["id"], answer["content"]) == (f"msg_{left}", "notes on tides: one two")
        note = answer["metadata"]["stoppable"]
        assert (note["run"], note["status"]) == (left, "stopped")
        assert note["message"] == "Stopped: the client left. Everything it started has ended."
        # The agent got the same conversation.
        heard = events[-1]["result"]["messages"]
        assert [(one["role"], one["content"]) for one in heard] == client.said[:-1]
        # It is told once.
        assert "MESSAGES_SNAPSHOT" not in kinds(client.ask("and then"))
        assert len(runs(service)) == 3


def test_a_client_that_has_a_part_of_the_answer_gets_the_rest_in_its_place(marks, work):
    with connected("research") as (_, client):
        left_at_work(client, marks, work)
        assert client.said[1:] == [("assistant", "notes on tides: ")]
        client.agent = "echo"
        events = client.ask("and now")
        [snapshot] = [event["messages"] for event in events if event["type"] == "MESSAGES_SNAPSHOT"]
        assert [one["content"] for one in snapshot] == [work, "notes on tides: one two", "and now"]
        assert client.said[-1] == ("assistant", "and now ")


def test_a_question_that_is_asked_again_does_not_bring_its_old_answer_back(marks, work):
    with connected("research") as (_, client):
        left_at_work(client, marks, work)
        client.agent = "echo"
        client.messages = client.messages[:1]
        assert "MESSAGES_SNAPSHOT" not in kinds(client.ask())
        assert len(client.messages) == 2


def test_an_answer_whose_question_was_removed_does_not_come_back(marks, work):
    with connected("research") as (_, client):
        left_at_work(client, marks, work)
        client.agent, client.messages = "echo", []
        assert "MESSAGES_SNAPSHOT" not in kinds(client.ask("something else"))
        assert client.said == [("user", "something else"), ("assistant", "something else ")]


def test_the_end_of_a_run_that_could_not_be_stopped_is_told_in_the_next_one():
    with connected("hangs", HASTY) as (service, client):
        with client.stream("go") as stream:
            while next(stream)["type"] != "TEXT_MESSAGE_CONTENT":
                pass
        assert ended(service).status == "lost"
        client.agent = "echo"
        client.ask("and now")
        note = client.messages[1]["metadata"]["stoppable"]
        assert note["status"] == "lost"
        assert "may still be running" in note["message"]
        GATES.release.set()


def sent(service, path, body):
    """Send a request over a plain socket, and return the socket."""
    host, port = service.url.removeprefix("http://").split(":")
    text = json.dumps(body).encode()
    fields = {"Host": "localhost", "Content-Type": "application/json", "Content-Length": len(text)}
    head = "\r\n".join([f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""])
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((host, int(port)))
    connection.sendall(head.encode() + text)
    return connection


def is_idle(service):
    """Return whether the server has dealt with every request that it has got, also of clients that have left."""
    state = service._server.server_state
    return not state.connections and not state.tasks


def test_a_client_that_leaves_before_it_has_heard_anything_stops_what_it_has_started():
    with serving() as service:
        for number in range(10):
            text = f"question {number}"  # a gate may be reached by the run of a client that has left before
            with sent(service, "/agui/waits", Client("", "waits").body(text)):
                if number % 2:
                    wait_until(lambda text=text: text in GATES.calls)
                # Otherwise whenever the server notices it: before the run, at its start, or later.
        wait_until(lambda: is_idle(service) and all(run.over for run in runs(service)))
        assert len(runs(service)) >= 5
        assert {run.status for run in runs(service)} == {"stopped"}


def test_a_client_that_does_not_read_is_dropped_and_its_agent_is_stopped():
    with serving(limits=ServerLimits(slow_seconds=0.1)) as service:
        with sent(service, "/agui/flood", Client("", "flood").body("go")):
            run = ended(service)
        assert (run.status, run.reason.kind, run.reason.source) == ("stopped", "disconnect", "ag_ui")


@pytest.fixture
def made(monkeypatch):
    """The surfaces that servers make."""
    surfaces = []

    class Noted(surface.Surface):
        def __init__(self, *args):
            super().__init__(*args)
            surfaces.append(self)

    monkeypatch.setattr(ag_ui, "Surface", Noted)
    return surfaces


def test_a_message_that_is_read_before_the_news_that_its_client_has_left_waits_for_it(made, monkeypatch):
    monkeypatch.setattr(surface, "_NEWS", 100.0)
    with connected("waits") as (service, client):
        body = client.body("go")
        connection = sent(service, "/agui/waits", body)
        wait_until(lambda: body["runId"] in made[0]._attended and GATES.reached.is_set())
        client.agent, answers = "echo", []
        thread = threading.Thread(target=lambda: answers.append(client.ask("next")))
        thread.start()
        wait_until(lambda: made[0]._attended[body["runId"]]._waiters)
        assert not answers
        connection.close()
        thread.join()
        assert text_of(answers[0]) == "next "
        assert client.said == [("user", "go"), ("assistant", "first "), ("user", "next"), ("assistant", "next ")]
        second, first = runs(service)
        assert (first.status, second.status) == ("stopped", "completed")
        assert first.ended_at <= second.created_at


def test_a_message_beside_a_run_that_ends_just_then_is_taken(made, monkeypatch):
    monkeypatch.setattr(surface, "_NEWS", 100.0)
    with connected("waits") as (service, client):
        answers = []
        thread = threading.Thread(target=lambda: answers.append(Client(service.url, "echo", client.thread).ask("next")))
        with client.stream("go") as stream:
            wait_until(GATES.reached.is_set)
            thread.start()
            wait_until(lambda: made[0]._attended[client.run_id]._waiters)
            GATES.release.set()
            assert list(stream)[-1]["result"] == "third"
        thread.join()
        assert text_of(answers[0]) == "next "
        assert [run.status for run in runs(service)] == ["completed", "completed"]


def test_a_message_beside_a_run_whose_client_stays_is_refused(made, monkeypatch):
    monkeypatch.setattr(surface, "_NEWS", 0.01)
    with connected("waits") as (service, client):
        with client.stream("go") as stream:
            next(stream)
            with pytest.raises(Refused, match="is at work") as refused:
                Client(service.url, "echo", client.thread).ask("me too")
            assert (refused.value.status, refused.value.event["code"]) == (409, "conversation_busy")
            GATES.release.set()
            assert list(stream)[-1]["type"] == "RUN_FINISHED"
        wait_until(lambda: made[0]._attended == {})  # the client has the end before the server is done with the stream


def test_a_client_that_leaves_and_asks_at_once_is_answered():
    with connected("waits") as (service, client):
        for _ in range(10):
            client.agent = "waits"
            with client.stream("go") as stream:
                next(stream)
            client.agent = "echo"
            assert text_of(client.ask("next")) == "next "
        assert {run.status for run in runs(service) if run.name == "waits"} == {"stopped"}


def test_an_end_and_a_stop_at_once_have_one_true_result():
    with connected("waits") as (service, client):
        for _ in range(20):
            GATES.close()
            with client.stream("go") as stream:
                wait_until(GATES.reached.is_set)
                together = threading.Barrier(2)

                def end(together=together, run_id=client.run_id):
                    together.wait()
                    service.supervisor.blocking.stop(run_id)

                thread = threading.Thread(target=end)
                thread.start()
                together.wait()
                GATES.release.set()
                events = list(stream)
                thread.join()
            status = service.supervisor.blocking.get(client.run_id).status
            if status == "completed":
                assert (events[-1]["type"], events[-1]["result"]) == ("RUN_FINISHED", "third")
                assert client.said[-1] == ("assistant", "first second third")
            else:
                assert status == "stopped"
                assert_cancelled(events[-1])
                assert client.said[-1][1] in {"first ", "first second "}


def test_an_end_and_a_client_that_leaves_at_once_have_one_true_result():
    with connected("waits") as (service, client):
        for _ in range(20):
            GATES.close()
            with client.stream("go") as stream:
                next(stream)
                wait_until(GATES.reached.is_set)
                GATES.release.set()
            left = client.run_id
            client.agent = "chatting"
            heard = client.ask("next")[-1]["result"]["messages"]
            client.agent = "waits"
            record = service.supervisor.blocking.get(left)
            kept = {"completed": {"first second third"}, "stopped": {"first ", "first second "}}
            said = [one["content"] for one in client.messages if one["id"] == f"msg_{left}"]
            if record.status == "stopped" or record.stop is not None:
                assert set(said) <= kept[record.status]
                assert said == [one["content"] for one in heard if one["content"] in said][-1:]
            client.messages = []


def test_a_stop_by_the_key_of_the_thread_ends_its_run():
    with connected("waits") as (service, client):
        with client.stream("go") as stream:
            next(stream)
            service.supervisor.blocking.stop(key=f"ag_ui:{client.thread}", reason="enough")
            assert_cancelled(list(stream)[-1])


def test_a_run_is_stopped_over_http_by_the_id_that_its_client_gave_it():
    async def ann() -> Principal:
        return Principal(owner="ann")

    with serving(principal=ann) as service:
        client = Client(service.url, "waits")
        with client.stream("go") as stream:
            first = next(stream)
            assert first["runId"] == client.run_id
            response = httpx.post(f"{service.url}/runs/{client.run_id}/stop", json={}, timeout=DEADLINE)
            assert response.status_code in {200, 202}
            last = list(stream)[-1]
        assert_cancelled(last)
        if IS_CURRENT:
            assert last["runId"] == client.run_id


def test_a_stream_may_be_left_although_its_owner_has_no_connections_left():
    async def ann() -> Principal:
        return Principal(owner="ann")

    with serving(principal=ann, limits=ServerLimits(owner_connections=1)) as service:
        client = Client(service.url, "waits")
        with client.stream("go") as stream:
            next(stream)
            with pytest.raises(Refused) as refused:
                Client(service.url, "echo").ask("x")
            assert (refused.value.status, refused.value.event["type"]) == (429, "RUN_ERROR")
        assert ended(service).status == "stopped"
