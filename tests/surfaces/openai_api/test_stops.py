"""The unmodified client of OpenAI stops agents: by a cancel, and by leaving."""

import asyncio
import json
import socket
import threading

import openai
import pytest
from tests.waiting import until

from stoppable.server import Principal, ServerLimits

from .agents import GATES
from .conftest import DEADLINE, HASTY, client_of, connected, newest, run_of, runs, serving, wait_until


def cancelled_at_work(client, marks, work):
    """Cancel an agent that works in four ways, and return the response once the server says that it has ended."""
    response = client.responses.create(model="research", input=work, background=True)
    wait_until(marks.have_begun)
    cancelled = client.responses.cancel(response.id)
    assert marks.still_there() == [], "nothing is left that could leave a mark"
    return cancelled


def test_a_cancel_ends_all_that_an_agent_has_started_before_it_is_answered(marks, work):
    with connected() as (service, client):
        cancelled = cancelled_at_work(client, marks, work)
        assert cancelled.status == "cancelled"
        assert cancelled.output_text == "notes on tides: one two", "what it had said is kept"
        assert cancelled.output[0].status == "incomplete"
        assert cancelled.stoppable["alive"] == []
        record = run_of(service, cancelled.id)
    assert (record.status, record.stop.reason.kind, record.stop.reason.source) == ("stopped", "user", "openai")
    assert (record.stop.mode, record.stop.reason.actor) == ("graceful", "local")


def test_a_cancel_may_be_repeated_and_read_again(marks, work):
    with connected() as (_, client):
        cancelled = cancelled_at_work(client, marks, work)
        assert client.responses.cancel(cancelled.id) == cancelled
        assert client.responses.retrieve(cancelled.id) == cancelled


def test_the_turn_after_a_cancel_works(marks, work):
    with connected() as (_, client):
        cancelled = cancelled_at_work(client, marks, work)
        after = client.responses.create(model="echo", input="and now", previous_response_id=cancelled.id)
        assert (after.status, after.output_text.strip()) == ("completed", "and now")
        assert after.previous_response_id == cancelled.id


def test_cancels_at_once_get_one_answer(marks, work):
    with connected() as (service, client):
        response = client.responses.create(model="research", input=work, background=True)
        wait_until(marks.have_begun)
        together, answers = threading.Barrier(5), []

        def cancel():
            together.wait()
            answers.append(client.responses.cancel(response.id))

        threads = [threading.Thread(target=cancel) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(answers) == 5
        assert all(answer == answers[0] for answer in answers)
        assert answers[0].status == "cancelled"
        assert run_of(service, response.id).stop.mode == "graceful", "a repeated request is no harder stop"


def test_a_cancel_at_once_after_the_start_has_one_true_end():
    with connected() as (service, client):
        for _ in range(20):
            response = client.responses.create(model="waits", input="go", background=True)
            assert client.responses.cancel(response.id).status == "cancelled"
            assert run_of(service, response.id).status == "stopped"


def test_a_thread_that_nothing_can_end_is_named_and_never_called_cancelled():
    with connected(HASTY) as (service, client):
        response = client.responses.create(model="hangs", input="go", background=True)
        wait_until(GATES.is_blocking)
        failed = client.responses.cancel(response.id)
        assert failed.status == client.responses.cancel(response.id).status == "failed"
        assert failed.error.code == "server_error"
        assert failed.error.message.startswith("The stop is not confirmed: ")
        assert "in hangs, inside threading.wait (thread stoppable hangs) may still be running" in failed.error.message
        assert failed.output_text == "so far"
        assert failed.stoppable["status"] == run_of(service, response.id).status == "lost"
        [name] = failed.stoppable["alive"]
        assert "hangs" in name
        events = list(client.responses.retrieve(response.id, stream=True))
        assert (events[-1].type, events[-1].response.status) == ("response.failed", "failed")
        GATES.release.set()


def test_an_agent_that_swallows_the_cancel_is_cancelled_once_it_has_ended():
    with connected() as (_, client):
        response = client.responses.create(model="stubborn", input="go", background=True)
        wait_until(GATES.reached.is_set)
        GATES.reached.clear()
        answers = []
        thread = threading.Thread(target=lambda: answers.append(client.responses.cancel(response.id)))
        thread.start()
        wait_until(GATES.reached.is_set)
        assert client.responses.retrieve(response.id).status in {"queued", "in_progress"}
        assert not answers
        GATES.release.set()
        thread.join()
        assert GATES.calls == ["swallowed"]
        assert answers[0].status == "cancelled"


def test_a_cancel_of_what_has_completed_returns_it_as_it_is():
    with connected() as (_, client):
        done = client.responses.create(model="echo", input="hello")
        late = client.responses.cancel(done.id)
        assert (late.status, late.output_text) == ("completed", done.output_text)


def ended(service):
    return wait_until(lambda: runs(service) and (run := newest(service)).over and run)


def assert_left(service, marks):
    run = ended(service)
    assert marks.still_there() == []
    assert (run.status, run.reason.kind, run.reason.source) == ("stopped", "disconnect", "openai")
    assert service.supervisor.blocking.get(run.id).outcome.partial == "notes on tides: one two"


def test_leaving_the_stream_of_a_response_stops_the_agent(marks, work):
    with connected() as (service, client):
        with client.responses.create(model="research", input=work, stream=True) as stream:
            next(stream)
            wait_until(marks.have_begun)
        assert_left(service, marks)


def test_leaving_the_stream_of_a_chat_stops_the_agent(marks, work):
    with connected() as (service, client):
        messages = [{"role": "user", "content": work}]
        with client.chat.completions.create(model="research", messages=messages, stream=True) as stream:
            assert next(stream).choices[0].delta.role == "assistant"
            wait_until(marks.have_begun)
        assert_left(service, marks)


@pytest.mark.parametrize("kind", ["responses", "chat"])
async def test_leaving_a_request_that_waits_stops_the_agent(marks, work, kind):
    with serving() as service:
        async with openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0) as client:
            if kind == "chat":
                messages = [{"role": "user", "content": work}]
                request = client.chat.completions.create(model="research", messages=messages)
            else:
                request = client.responses.create(model="research", input=work)
            task = asyncio.create_task(request)
            await until(marks.have_begun, within=DEADLINE)
            task.cancel()
            await asyncio.wait({task})
            await asyncio.to_thread(assert_left, service, marks)


def test_leaving_the_stream_of_a_response_in_the_background_stops_nothing():
    with connected() as (service, client):
        with client.responses.create(model="waits", input="go", background=True, stream=True) as stream:
            response_id = next(stream).response.id
        with client.responses.retrieve(response_id, stream=True) as again:
            next(again)
        GATES.release.set()
        assert ended(service).status == "completed"
        assert client.responses.retrieve(response_id).output_text == "first second third"


def test_a_reader_that_leaves_does_not_stop_the_response_of_another_client():
    with connected() as (service, client):
        stream = client.responses.create(model="waits", input="go", stream=True)
        response_id = next(stream).response.id
        with client.responses.retrieve(response_id, stream=True) as reader:
            next(reader)
        GATES.release.set()
        assert list(stream)[-1].response.status == "completed"
        assert ended(service).status == "completed"


def test_a_client_that_retries_does_not_start_an_agent_again_that_has_failed():
    with serving() as service, client_of(service, max_retries=2) as client:
        with pytest.raises(openai.InternalServerError, match="ValueError: the tool is broken"):
            client.chat.completions.create(model="failing", messages=[{"role": "user", "content": "go"}])
        assert len(runs(service)) == 1


def test_a_chat_that_was_stopped_elsewhere_is_an_error_and_no_answer():
    with serving() as service, client_of(service, max_retries=2) as client:

        def stop():
            wait_until(GATES.reached.is_set)
            service.supervisor.blocking.stop(newest(service).id, reason="enough", actor="ann")

        thread = threading.Thread(target=stop)
        thread.start()
        with pytest.raises(openai.ConflictError, match=r"Stopped: enough \(ann\)") as refused:
            client.chat.completions.create(model="waits", messages=[{"role": "user", "content": "go"}])
        thread.join()
        assert refused.value.code == "stopped"
        assert refused.value.body["stoppable"]["run"] == newest(service).id
        assert len(runs(service)) == 1, "it was not started again"


def test_the_stream_of_a_chat_that_was_stopped_elsewhere_raises_and_never_finishes():
    with connected() as (service, client):
        messages = [{"role": "user", "content": "go"}]
        stream = client.chat.completions.create(model="waits", messages=messages, stream=True)
        said = []
        with pytest.raises(openai.APIError, match="Stopped: enough"):
            for chunk in stream:
                said.append(chunk.choices[0])
                if chunk.choices[0].delta.content == "first ":
                    service.supervisor.blocking.stop(newest(service).id, reason="enough")
        assert "".join(one.delta.content or "" for one in said) == "first "
        assert {one.finish_reason for one in said} == {None}


def test_a_server_that_shuts_down_ends_the_streams_with_the_end_of_their_runs():
    with serving() as service, client_of(service) as client:
        stream = client.responses.create(model="waits", input="go", stream=True)
        next(stream)
        service.stop()
        last = list(stream)[-1]
        assert (last.type, last.response.status) == ("response.incomplete", "cancelled")
        assert last.response.stoppable["reason"]["kind"] == "shutdown"


BODIES = {
    "a stream": ("/v1/responses", {"stream": True}),
    "an answer": ("/v1/responses", {}),
    "chunks": ("/v1/chat/completions", {"stream": True}),
    "a completion": ("/v1/chat/completions", {}),
}


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


@pytest.mark.parametrize("kind", BODIES)
def test_a_client_that_leaves_before_it_has_heard_anything_stops_what_it_has_started(kind):
    path, options = BODIES[kind]
    with connected() as (service, _):
        for number in range(10):
            text = f"question {number}"  # a gate may be reached by the run of a client that has left before
            question = {"messages": [{"role": "user", "content": text}]} if "chat" in path else {"input": text}
            with sent(service, path, {"model": "waits", **question, **options}):
                if number % 2:
                    wait_until(lambda text=text: text in GATES.calls)
                # Otherwise whenever the server notices it: before the run, at its start, or later.
        wait_until(lambda: is_idle(service) and all(run.over for run in runs(service)))
        assert len(runs(service)) >= 5
        assert {run.status for run in runs(service)} == {"stopped"}


def is_idle(service):
    """Return whether the server has dealt with every request that it has got, also of clients that have left."""
    state = service._server.server_state
    return not state.connections and not state.tasks


def test_a_client_that_does_not_read_is_dropped_and_its_agent_is_stopped():
    with serving(limits=ServerLimits(slow_seconds=0.1)) as service:
        with sent(service, "/v1/responses", {"model": "flood", "input": "go", "stream": True}):
            run = ended(service)
        assert (run.status, run.reason.kind, run.reason.source) == ("stopped", "disconnect", "openai")


def test_an_end_and_a_cancel_at_once_have_one_true_result():
    with connected() as (service, client):
        for _ in range(20):
            GATES.close()
            stream = client.responses.create(model="waits", input="go", background=True, stream=True)
            response_id = next(stream).response.id
            wait_until(GATES.reached.is_set)
            together, answers = threading.Barrier(2), []

            def cancel(response_id=response_id, together=together, answers=answers):
                together.wait()
                answers.append(client.responses.cancel(response_id))

            thread = threading.Thread(target=cancel)
            thread.start()
            together.wait()
            GATES.release.set()
            thread.join()
            [answer] = answers
            assert answer == list(stream)[-1].response == client.responses.retrieve(response_id)
            if answer.status == "completed":
                assert answer.output_text == "first second third"
            else:
                assert answer.status == "cancelled"
                assert answer.output_text in {"first ", "first second "}
            assert run_of(service, response_id).status == {"cancelled": "stopped"}.get(answer.status, answer.status)


def test_a_turn_of_a_conversation_waits_for_the_end_of_one_whose_client_has_left():
    with serving() as service, client_of(service, max_retries=5) as client:  # as clients do if it is not noticed yet
        with client.responses.create(model="waits", input="go", stream=True) as stream:
            left = next(stream).response.id
        answer = client.responses.create(model="echo", input="next", previous_response_id=left)
        assert answer.output_text == "next "
        assert run_of(service, left).status == "stopped"
        assert run_of(service, left).ended_at <= run_of(service, answer.id).created_at


def test_a_request_that_waits_is_answered_when_the_server_shuts_down():
    with serving() as service, client_of(service) as client:
        answers = []

        def ask():
            answers.append(client.responses.create(model="waits", input="go"))

        thread = threading.Thread(target=ask)
        thread.start()
        wait_until(GATES.reached.is_set)
        service.stop()
        thread.join()
        assert answers[0].status == "cancelled"
        assert answers[0].stoppable["reason"]["kind"] == "shutdown"


def test_a_cancel_is_taken_although_its_owner_has_no_connections_left():
    async def ann() -> Principal:
        return Principal(owner="ann")

    with serving(principal=ann, limits=ServerLimits(owner_connections=1)) as service, client_of(service) as client:
        with client.responses.create(model="waits", input="go", stream=True) as stream:
            response_id = next(stream).response.id
            with pytest.raises(openai.RateLimitError):
                client.responses.retrieve(response_id)
            assert client.responses.cancel(response_id).status == "cancelled"
