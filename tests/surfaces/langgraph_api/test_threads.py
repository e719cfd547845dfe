"""What a thread contains, whose it is, and that it outlives the server."""

import json

import pytest

from stoppable.server import ServerLimits

from ..openai_api.agents import GATES
from .conftest import (
    begin,
    by_header,
    cancel_many,
    chat,
    client_for,
    client_of,
    connected,
    ended,
    new_thread,
    refused,
    runs,
    said,
    serving,
    wait_until,
)


def test_the_assistants_are_the_agents():
    with connected() as (_, client):
        found = client.assistants.search(limit=100)
        assert {"echo", "research"} <= {one["assistant_id"] for one in found}
        [echo] = client.assistants.search(graph_id="echo")
        assert echo == client.assistants.get("echo")
        assert (echo["name"], echo["description"]) == ("echo", "Say the text, word for word, and return it.")
        assert client.assistants.get_schemas("typed")["input_schema"]["required"] == ["count"]
        assert len(client.assistants.get_graph("echo")["nodes"]) == 3
        with refused(404):
            client.assistants.get("nobody")


def test_a_thread_has_what_was_said_in_all_of_its_runs():
    with connected() as (_, client):
        thread = new_thread(client)
        assert client.threads.get_state(thread)["checkpoint"] is None
        client.runs.wait(thread, "recalling", input=said("one"))
        values = client.runs.wait(thread, "recalling", input={"messages": [{"type": "human", "content": "two"}]})
        expected = [("human", "one"), ("ai", "1: one"), ("human", "two"), ("ai", "3: two")]
        assert chat(client, thread) == [(one["type"], one["content"]) for one in values["messages"]] == expected
        assert GATES.calls == [["one"], ["one", "1: one", "two"]]
        assert client.threads.get(thread)["values"] == values


@pytest.mark.parametrize(
    ("messages", "heard"),
    [
        ("a text", ["a text"]),
        (["a", "b"], ["a", "b"]),
        (["user", "b"], ["b"]),
        ([["user", "a"], ["ai", "b"], ["human", "c"]], ["a", "b", "c"]),
        ([{"role": "system", "content": "short"}, {"role": "user", "content": "x"}], ["short", "x"]),
        (
            [{"type": "human", "content": [{"type": "text", "text": "in "}, {"type": "text", "text": "two"}]}],
            ["in two"],
        ),
        ([{"type": "tool", "content": "5", "tool_call_id": "c"}, {"type": "human", "content": "x"}], ["x"]),
        ({"type": "human", "content": "alone", "id": "m"}, ["alone"]),
    ],
)
def test_messages_are_taken_in_every_form_that_langgraph_takes(messages, heard):
    with connected() as (_, client):
        client.runs.wait(None, "recalling", input={"messages": messages})
        assert GATES.calls == [heard]


def test_an_input_without_messages_is_the_arguments_of_the_agent():
    with connected() as (_, client):
        values = client.runs.wait(None, "typed", input={"count": 2})
        assert (values["count"], values["messages"][-1]["content"]) == (2, "3")
        values = client.runs.wait(None, "nothing", input={})
        assert values == {"messages": []}


def test_an_agent_that_keeps_the_history_gets_what_is_new_and_says_what_the_state_is():
    with connected() as (_, client):
        thread = new_thread(client)
        one = {"type": "human", "content": "one", "id": "a"}
        client.runs.wait(thread, "graphlike", input={"messages": [one]})
        values = client.runs.wait(thread, "graphlike", input={"messages": [{**one, "content": "two", "id": "b"}]})
        assert GATES.calls == [(thread, [one]), (thread, [{**one, "content": "two", "id": "b"}])]
        assert values["steps"] == 2
        assert [message["id"] for message in values["messages"]] == ["b", "made"]


def test_such_an_agent_gets_messages_as_they_are_also_those_that_are_no_text():
    with connected() as (_, client):
        image = {"type": "human", "content": [{"type": "image_url", "image_url": "data:"}], "id": "a"}
        client.runs.wait(None, "graphlike", input={"messages": [image]})
        assert GATES.calls[-1][1] == [image]
        with refused(422):
            client.runs.wait(None, "graphlike", input=None)


def test_messages_that_the_user_has_written_as_an_argument_are_that_argument():
    with connected() as (_, client):
        client.runs.wait(None, "recalling", input=said('{"messages": [{"content": "mine"}]}'))
        assert GATES.calls == [["mine"]]


def test_whatever_an_agent_returns_as_messages_is_shown_and_the_thread_goes_on():
    with connected() as (_, client):
        thread = new_thread(client)
        odd = [5, None, "text", {"type": ["x"], "id": 7}, {"content": [1]}]
        client.runs.wait(thread, "odd", input={"messages": [json.dumps({"result": odd})]})
        assert client.threads.get_state(thread)["values"]["messages"][:3] == odd[:3]
        assert client.runs.wait(thread, "recalling", input=said("next"))["messages"][-1]["content"] == "1: next"


def test_the_history_has_two_states_of_each_run_newest_first():
    with connected() as (_, client):
        thread = new_thread(client)
        for word in ("one", "two"):
            client.runs.wait(thread, "echo", input=said(word))
        history = client.threads.get_history(thread)
        assert [len(state["values"]["messages"]) for state in history] == [4, 3, 2, 1]
        assert [state["metadata"]["source"] for state in history] == ["loop", "input"] * 2
        assert [state["parent_checkpoint"] for state in history[:3]] == [state["checkpoint"] for state in history[1:]]
        assert history[3]["parent_checkpoint"] is None
        assert client.threads.get_state(thread) == history[0]
        assert client.threads.get_state(thread, checkpoint=history[2]["checkpoint"]) == history[2]
        assert client.threads.get_history(thread, limit=1, before=history[1]["checkpoint"]) == [history[2]]


def test_a_question_can_be_asked_again_from_an_earlier_state():
    with connected() as (_, client):
        thread = new_thread(client)
        for word in ("one", "two"):
            client.runs.wait(thread, "recalling", input=said(word))
        newest, asked, before, _ = client.threads.get_history(thread)
        client.runs.wait(thread, "recalling", input=None, checkpoint=asked["checkpoint"])
        assert GATES.calls[-1] == ["one", "1: one", "two"]
        client.runs.wait(thread, "recalling", input=said("other"), checkpoint_id=before["checkpoint"]["checkpoint_id"])
        assert GATES.calls[-1] == ["one", "1: one", "other"]
        assert [text for _, text in chat(client, thread)] == ["one", "1: one", "other", "3: other"]
        assert client.threads.get_state(thread, checkpoint=newest["checkpoint"]) == newest
        with refused(404):
            client.runs.wait(thread, "recalling", input=said("x"), checkpoint_id="unknown")


def test_threads_are_found_by_their_metadata_and_their_agent():
    with connected() as (_, client):
        first = new_thread(client, metadata={"topic": "tides"}, thread_id="first")
        second = new_thread(client, metadata={"topic": "moons"})
        client.runs.wait(first, "echo", input=said("x"))
        assert [one["thread_id"] for one in client.threads.search(metadata={"topic": "moons"})] == [second]
        [found] = client.threads.search(metadata={"graph_id": "echo"})
        assert (found["thread_id"], found["values"]["messages"][0]["content"]) == ("first", "x")
        assert [one["thread_id"] for one in client.threads.search()] == [first, second]
        assert [one["thread_id"] for one in client.threads.search(sort_by="created_at", sort_order="asc")] == [
            first,
            second,
        ]
        assert client.threads.count(metadata={"topic": "tides"}) == 1
        client.threads.update(first, metadata={"topic": "waves", "new": 1})
        assert client.threads.get(first)["metadata"]["topic"] == "waves"
        assert client.threads.search(status="busy") == []
        with refused(409):
            new_thread(client, thread_id="first")
        assert new_thread(client, thread_id="first", if_exists="do_nothing") == "first"


def test_a_thread_is_there_again_after_a_restart(tmp_path):
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    with connected(store=url) as (_, client):
        thread = new_thread(client, metadata={"topic": "tides"})
        client.runs.wait(thread, "recalling", input=said("one"))
        _, gone = begin(client, "waits", said("go"), thread)
        wait_until(GATES.reached.is_set)
        client.runs.cancel(thread, gone, wait=True, action="rollback")
        before = client.threads.get(thread)
        taken_back, only = begin(client, "waits", said("go"))
        client.runs.cancel(taken_back, only, wait=True, action="rollback")
    with connected(store=url) as (_, client):
        assert client.threads.get(thread) == before
        assert {one["thread_id"] for one in client.threads.search()} == {thread, taken_back}
        assert client.threads.get_state(taken_back)["values"] == {}
        client.runs.wait(thread, "recalling", input=said("two"))
        assert GATES.calls[-1] == ["one", "1: one", "two"]


def test_what_users_say_is_not_kept_if_the_server_must_not():
    with connected(keep_input=False) as (service, client):
        thread = new_thread(client)
        client.runs.wait(thread, "echo", input=said("a secret"))
        assert chat(client, thread) == [("ai", "a secret ")], "which is what the agent has said"
        assert service.supervisor.blocking.get(runs(service)[0].id).metadata == {}


def test_a_run_may_make_its_thread():
    with connected() as (_, client):
        client.runs.wait("chosen", "echo", input=said("x"), if_not_exists="create")
        assert chat(client, "chosen") == [("human", "x"), ("ai", "x ")]


# Owners, scopes and limits


def test_the_threads_of_two_owners_do_not_meet():
    with serving(principal=by_header) as service, client_for(service, "ann") as ann, client_for(service, "bob") as bob:
        for client, word in ((ann, "of ann"), (bob, "of bob")):
            new_thread(client, thread_id="same")
            client.runs.wait("same", "recalling", input=said(word))
        assert [chat(client, "same")[0][1] for client in (ann, bob)] == ["of ann", "of bob"]
        assert GATES.calls == [["of ann"], ["of bob"]]
        assert len(ann.threads.search()) == len(ann.runs.list("same")) == 1


def test_what_belongs_to_another_owner_is_not_found():
    with serving(principal=by_header) as service, client_for(service, "ann") as ann, client_for(service, "bob") as bob:
        thread, run_id = begin(ann, "waits", said("go"))
        wait_until(GATES.reached.is_set)
        for attempt in (
            lambda: bob.threads.get(thread),
            lambda: bob.threads.get_state(thread),
            lambda: bob.threads.get_history(thread),
            lambda: bob.threads.update(thread, metadata={"x": 1}),
            lambda: bob.runs.list(thread),
            lambda: bob.runs.get(thread, run_id),
            lambda: bob.runs.cancel(thread, run_id),
            lambda: cancel_many(bob, thread_id=thread, run_ids=[run_id]),
            lambda: bob.runs.join(thread, run_id),
            lambda: list(bob.runs.join_stream(thread, run_id)),
            lambda: bob.runs.create(thread, "echo", input=said("x"), multitask_strategy="interrupt"),
        ):
            with refused(404):
                attempt()
        cancel_many(bob, status="all")
        assert bob.threads.search() == []
        GATES.release.set()
        assert ended(ann, thread, run_id)["status"] == "success"
        assert len(runs(service)) == 1


def test_each_request_needs_its_scope():
    with serving(principal=by_header) as service, client_for(service, "ann") as ann:
        thread, run_id = begin(ann, "waits", said("go"))
        wait_until(GATES.reached.is_set)
        with client_for(service, "ann", "read start") as client:
            for attempt in (
                lambda: client.runs.cancel(thread, run_id),
                lambda: cancel_many(client, status="all"),
                lambda: client.runs.create(thread, "echo", input=said("x"), multitask_strategy="interrupt"),
                lambda: list(client.runs.join_stream(thread, run_id, cancel_on_disconnect=True)),
            ):
                with refused(403):
                    attempt()
        with client_for(service, "ann", "stop") as client:
            for attempt in (
                client.assistants.search,
                client.threads.create,
                lambda: client.runs.get(thread, run_id),
                lambda: client.runs.create(thread, "echo", input=said("x")),
            ):
                with refused(403):
                    attempt()
            client.runs.cancel(thread, run_id)
        assert ended(ann, thread, run_id)["status"] == "interrupted"
        assert len(runs(service)) == 1


def test_a_hold_and_a_quota_refuse_a_run():
    with (
        serving(principal=by_header, limits=ServerLimits(owner_runs=1)) as service,
        client_for(service, "ann") as client,
    ):
        begin(client, "waits", said("go"))
        wait_until(GATES.reached.is_set)
        with refused(429):
            begin(client, "echo", said("x"))
        GATES.release.set()
        service.supervisor.blocking.hold(agent="echo", reason="incident")
        wait_until(lambda: runs(service)[0].over)
        with refused(403):
            begin(client, "echo", said("x"))


def test_a_key_is_needed_where_the_server_has_one():
    with serving(api_key="a key of its own") as service:
        with client_of(service) as client, refused(401):
            client.threads.search()
        with client_of(service, headers={"Authorization": "Bearer a key of its own"}) as client:
            assert client.threads.search() == []
