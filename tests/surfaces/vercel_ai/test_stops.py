"""A stop of a page ends its turn and is told to the end; a client that leaves stops its turn too."""

import contextlib
import threading

import pytest

from stoppable.server.surfaces.ends import text_of as text_of_partial
from stoppable.server.surfaces.surface import Surface

from ..openai_api.agents import GATES
from .conftest import (
    BRISK,
    DEADLINE,
    HASTY,
    PATIENT,
    Client,
    Refused,
    assert_aborted,
    by_header,
    client_of,
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

# Stops of a page


@pytest.mark.parametrize("agent", ["research", "crew"])
def test_a_stop_ends_all_that_an_agent_has_started_before_the_stream_ends(agent, marks, work):
    with connected(agent) as (service, client):
        parts = []
        with client.stream(work) as stream:
            wait_until(marks.have_begun)
            answer = client.stop({"reason": "enough"})
            for part in stream:
                parts.append(part)
                if part["type"] == "abort":
                    assert marks.still_there() == [], "nothing is left that could leave a mark"
        assert_aborted(parts, client.run_id)
        stop = service.supervisor.blocking.get(client.run_id).stop
        assert (stop.mode, stop.reason.kind) == ("graceful", "user")
        assert (stop.reason.message, stop.reason.source) == ("enough", "vercel")
        assert answer.json()["runId"] == client.run_id
        assert facts_of(parts)["message"] == "Stopped: enough (local). Everything it started has ended."


def test_a_stop_during_text_keeps_it_and_the_next_turn_works():
    with connected("waits") as (service, client):
        with client.stream("go") as stream:
            parts = []
            for part in stream:
                parts.append(part)
                if part["type"] == "text-delta":
                    answer = client.stop()
                    assert answer.status_code in {200, 202}
        assert kinds(parts)[:4] == ["start", "start-step", "text-start", "text-delta"]
        stopping = only(parts, "data-stopping")
        assert stopping["transient"], "it is no part of the message"
        assert stopping["data"]["mode"] == "graceful"
        assert "text-end" in kinds(parts)
        assert_aborted(parts, client.run_id)
        assert text_of(parts) == "first "
        client.agent = "echo"
        assert text_of(client.ask("and now")) == "and now "
        assert [run.status for run in runs(service)] == ["completed", "stopped"]


def stopped_in_a_tool(text, policy, *, released=False):
    """Stop a turn while its tool is at work, and return its parts."""
    with connected("tooling", policy) as (_, client):
        with client.stream(text) as stream:
            # A thread that has not begun at the stop never does.
            wait_until(GATES.is_blocking if text == "hang" else GATES.reached.is_set)
            client.stop()
            parts = []
            for part in stream:
                parts.append(part)
                if released and part["type"] == "data-stopping":
                    GATES.release.set()
        return client, parts


def test_a_tool_that_is_cut_may_have_taken_effect():
    client, parts = stopped_in_a_tool("sleep", BRISK)
    assert_aborted(parts, client.run_id)
    output = only(parts, "tool-output-error")
    assert output["toolCallId"] == only(parts, "tool-input-available")["toolCallId"]
    assert output["errorText"] == "The run was stopped while this call was in flight: it may have taken effect."


def test_a_tool_that_ends_within_the_grace_has_finished():
    client, parts = stopped_in_a_tool("wait", PATIENT, released=True)
    assert_aborted(parts, client.run_id)
    assert only(parts, "tool-output-available")["output"] == {"fate": "finished"}


def test_a_tool_that_nothing_can_end_may_still_be_running():
    _, parts = stopped_in_a_tool("hang", HASTY)
    output = only(parts, "tool-output-error")
    assert output["errorText"].endswith("it may still be running.")
    assert facts_of(parts)["status"] == "lost"
    assert parts[-1]["type"] == "error"
    assert kinds(parts).index("tool-output-error") < kinds(parts).index("error")


def test_the_tool_of_a_sub_agent_that_is_cut_is_told_too():
    with connected("lead") as (_, client):
        with client.stream("sleep") as stream:
            parts = [next(stream)]
            while parts[-1]["type"] != "tool-input-available":  # after the start of the sub-agent
                parts.append(next(stream))
            client.stop()
            parts += stream
        assert_aborted(parts, client.run_id)
        assert only(parts, "tool-output-error")["errorText"].endswith("it may have taken effect.")
        subagents = [part["data"]["status"] for part in parts if part["type"] == "data-subagent"]
        assert subagents == ["running", "stopped"]


def test_a_stop_may_wait_for_the_end_and_has_the_receipt():
    with connected("waits") as (_, client):
        with client.stream("go") as stream:
            wait_until(GATES.reached.is_set)
            answer = client.stop({"mode": "immediate", "reason": "now"}, wait=60)
            assert answer.status_code == 200
            assert answer.headers["stoppable-run-id"] == client.run_id
            stopped = answer.json()
            assert (stopped["runId"], stopped["status"]) == (client.run_id, "stopped")
            assert (stopped["receipt"]["mode"], stopped["receipt"]["reason"]["message"]) == ("immediate", "now")
            assert_aborted(list(stream), client.run_id)
        assert client.stop().json()["receipt"]["answer"] == "already_finished"


def test_a_stop_that_is_repeated_changes_nothing_and_a_harder_one_escalates():
    with connected("tooling", PATIENT) as (service, client):
        with client.stream("sleep") as stream:
            wait_until(GATES.reached.is_set)
            assert client.stop().status_code == 202
            assert client.stop().json()["receipt"]["answer"] == "already_stopping"
            client.stop({"mode": "kill"})
            assert_aborted(list(stream), client.run_id)
        assert service.supervisor.blocking.get(client.run_id).stop.mode == "kill"


def test_a_stop_elsewhere_is_told_in_the_same_words():
    with connected("waits") as (service, client):
        with client.stream("go") as stream:
            wait_until(GATES.reached.is_set)
            service.supervisor.blocking.stop(client.run_id, reason="incident", actor="ann")
            parts = list(stream)
        assert_aborted(parts, client.run_id)
        assert facts_of(parts)["message"] == "Stopped: incident (ann). Everything it started has ended."


def test_a_server_on_the_same_store_reads_along_and_stops(tmp_path):
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    with connected("lead", store=store) as (_, client), serving(store=store) as other:
        again = Client(other.url, "lead", client.chat)
        with client.stream("sleep") as stream:
            wait_until(GATES.reached.is_set)
            with again.resume() as second:
                again.stop()
                parts = [list(stream), list(second)]
        for each in parts:
            assert_aborted(each, client.run_id)
            assert only(each, "tool-output-error")["errorText"].endswith("it may have taken effect.")
        again.agent = "echo"
        assert text_of(again.ask("and now")) == "and now "


def test_a_stop_while_a_message_waits_for_the_turn_before_is_for_that_message(monkeypatch):
    arrived = {name: threading.Event() for name in ("_settle", "wait_for_start")}
    for name, event in arrived.items():
        monkeypatch.setattr(Surface, name, noticing(getattr(Surface, name), event))
    with connected("stubborn") as (service, client):
        with client.stream("go") as stream:
            wait_until(GATES.reached.is_set)
            client.stop()
            wait_until(lambda: GATES.calls == ["swallowed"])
            for event in arrived.values():
                event.clear()
            second, parts = Client(service.url, "tooling", client.chat), []
            sender = threading.Thread(target=lambda: parts.extend(second.ask("sleep")))
            sender.start()
            wait_until(arrived["_settle"].is_set)
            stopper = threading.Thread(target=second.stop)
            stopper.start()
            wait_until(arrived["wait_for_start"].is_set)
            GATES.release.set()
            assert_aborted(list(stream), client.run_id)
            for thread in (stopper, sender):
                thread.join(DEADLINE)
        assert_aborted(parts, second.run_id)
        assert [run.name for run in runs(service)] == ["tooling", "stubborn"]


def noticing(method, event):
    """Return a method that says when it is called."""

    async def noticed(*args):
        event.set()
        return await method(*args)

    return noticed


# Clients that leave


def test_a_client_that_leaves_stops_all_that_an_agent_has_started(marks, work):
    with connected("research") as (service, client):
        with client.stream(work) as stream:
            while next(stream)["type"] != "text-delta":
                pass
            wait_until(marks.have_begun)
        run = ended(service, client.run_id)
        assert marks.still_there() == [], "nothing is left that could leave a mark"
        assert (run.status, run.stop.mode) == ("stopped", "graceful")
        assert (run.stop.reason.kind, run.stop.reason.source) == ("disconnect", "vercel")
        assert text_of_partial(run.outcome.partial) == "notes on tides: one two"


def test_a_turn_that_outlives_its_page_is_resumed_and_stopped_by_the_endpoint():
    with connected("waits") as (service, client):
        with client.stream("go", on_disconnect="keep") as stream:
            next(stream)
            wait_until(GATES.reached.is_set)
        with client.resume() as again:
            parts = [next(again)]
            client.stop()
            parts += again
        assert_aborted(parts, client.run_id)
        assert ended(service, client.run_id).stop.reason.kind == "user"


def test_the_next_message_waits_for_a_turn_whose_client_has_left(marks, work):
    with connected("research") as (service, client):
        with client.stream(work) as stream:
            next(stream)
            wait_until(marks.have_begun)
        client.agent = "echo"
        assert text_of(client.ask("and now")) == "and now "
        assert [run.status for run in runs(service)] == ["completed", "stopped"]


def test_a_page_that_reads_along_sees_the_end_of_a_turn_whose_first_page_leaves():
    with connected("waits") as (_, client):
        with contextlib.ExitStack() as second:
            with client.stream("go") as stream:
                next(stream)
                wait_until(GATES.reached.is_set)
                again = second.enter_context(client.resume())
                parts = [next(again)]
            parts += again
        assert_aborted(parts, client.run_id)
        assert facts_of(parts)["message"] == "Stopped: the client left. Everything it started has ended."


# Whose it is


def test_nobody_stops_or_reads_the_chat_of_another_owner():
    with serving(principal=by_header) as service:
        ann, bob = (client_of(service, user, "waits", "one") for user in ("ann", "bob"))
        with ann.stream("hello") as stream:
            wait_until(GATES.reached.is_set)
            with pytest.raises(Refused) as refused:
                bob.stop()
            unknown = client_of(service, "bob", "waits", "other")
            with pytest.raises(Refused) as same:
                unknown.stop()
            assert refused.value.status == same.value.status == 404
            assert refused.value.error["code"] == same.value.error["code"] == "chat_not_found"
            with bob.resume() as other:
                assert other is None
            # Their chats of one name do not meet.
            assert text_of(client_of(service, "bob", "echo", "one").ask("mine")) == "mine "
            [run] = [run for run in runs(service) if run.owner == "ann"]
            assert service.supervisor.blocking.get(run.id).stop is None
            GATES.release.set()
            assert kinds(list(stream))[-1] == "finish"
        with bob.resume() as other:
            assert other is None


def test_each_request_needs_its_scope():
    with serving(principal=by_header) as service:
        with pytest.raises(Refused, match="missing_scope"):
            client_of(service, "ann", "waits", "one", "read stop").ask("x")
        assert not runs(service)
        with client_of(service, "ann", "waits", "one").stream("x") as stream:
            wait_until(GATES.reached.is_set)
            with pytest.raises(Refused, match="missing_scope") as refused:
                client_of(service, "ann", "waits", "one", "read start").stop()
            assert refused.value.status == 403
            with (
                pytest.raises(Refused, match="missing_scope"),
                client_of(service, "ann", "waits", "one", "start stop").resume(),
            ):
                pass
            GATES.release.set()
            assert kinds(list(stream))[-1] == "finish"


def test_leaving_does_not_bypass_the_scope_stop():
    with serving(principal=by_header) as service:
        kept = client_of(service, "ann", "waits", "kept", "read start")
        with kept.stream("x") as stream:
            next(stream)
        left = client_of(service, "ann", "waits", "left")
        with left.stream("x") as stream:
            next(stream)
        assert ended(service, left.run_id).status == "stopped"
        assert service.supervisor.blocking.get(kept.run_id).stop is None
