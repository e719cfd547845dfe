"""``session/cancel`` of the official client is a stop: ``cancelled`` means that nothing is left."""

import acp
import pytest
from tests.waiting import until

from stoppable import Supervisor

from .conftest import DEADLINE, OWN, PLAIN, editing, ended


async def test_work_in_four_ways_has_ended_when_cancelled_is_answered(marks):
    async with editing(f"{PLAIN}:research") as editor:
        turn = editor.prompt({"folder": str(marks.folder)})
        await until(marks.have_begun, DEADLINE)
        await editor.hears("one two")
        await editor.cancel()
        answer = await ended(turn)
        assert answer.stop_reason == "cancelled"
        assert marks.still_there() == []
        facts = answer.field_meta["stoppable"]
        assert (facts["status"], facts["reason"]["source"], facts["alive"]) == ("stopped", "acp", [])
        assert editor.said() == "notes on tides: one two"


async def test_text_ends_and_the_next_turn_works():
    async with editing(f"{OWN}:talker") as editor:
        turn = editor.prompt("go")
        await editor.hears("word 3. ")
        await editor.cancel()
        assert (await ended(turn)).stop_reason == "cancelled"
        assert await editor.ask("once") == "end_turn"
        await editor.hears("once")
        words = editor.said().removesuffix("once")
        assert words == "".join(f"word {number}. " for number in range(1, words.count("word") + 1))


async def test_a_tool_that_the_stop_cuts_is_not_completed():
    async with editing(f"{OWN}:toolbox") as editor:
        turn = editor.prompt("wait")
        await editor.hears("writing. ")
        await editor.cancel()
        assert (await ended(turn)).stop_reason == "cancelled"
        await until(lambda: any("failed" in call for call in editor.calls()), DEADLINE)  # after the answer, perhaps
        [write] = [call for call in editor.calls() if call[0] == "write"]
        assert write[:3] == ["write", "in_progress", "failed"]
        assert write[3].startswith("Stopped: ")


async def test_a_thread_that_nothing_can_end_is_named_and_never_called_cancelled(tmp_path):
    path = tmp_path / "thread"
    async with editing(f"{OWN}:hanging") as editor:
        turn = editor.prompt({"path": str(path)})
        await until(path.exists, DEADLINE)
        await editor.cancel()
        with pytest.raises(acp.RequestError, match="may still be running") as caught:
            await ended(turn)
        assert caught.value.code == -32603
        [alive] = caught.value.data["stoppable"]["alive"]
        assert "hanging" in alive
        assert alive in str(caught.value)
        path.with_suffix(".release").touch()


async def test_a_second_cancel_is_harder(tmp_path):
    store = f"sqlite:///{tmp_path}/runs.db"
    async with editing(f"{OWN}:stubborn", "--store", store) as editor:
        turn = editor.prompt("go")
        await editor.hears("in a call. ")
        for _ in range(3):
            await editor.cancel()
        assert (await ended(turn)).stop_reason == "cancelled"
    async with Supervisor(store) as supervisor:
        [run] = (await supervisor.list()).runs
        record = await supervisor.get(run.id)
        assert (record.stop.mode, record.stop.reason.source) == ("kill", "acp")


async def test_a_cancel_right_behind_its_prompt_is_not_lost():
    async with editing(f"{PLAIN}:waits") as editor:
        turn = editor.prompt("go")
        await until(lambda: editor.connection._conn._next_request_id == 3, DEADLINE)  # it is sent
        await editor.cancel()
        assert (await ended(turn)).stop_reason == "cancelled"


async def test_a_cancel_without_a_turn_stops_nothing_later():
    async with editing(f"{PLAIN}:echo") as editor:
        await editor.cancel()
        assert await editor.ask("still here") == "end_turn"
        await editor.connection.cancel(session_id="nobody's")
        assert await editor.ask("and here") == "end_turn"


async def test_a_stop_from_elsewhere_is_cancelled_too(tmp_path):
    store = f"sqlite:///{tmp_path}/runs.db"
    async with editing(f"{PLAIN}:waits", "--store", store) as editor, Supervisor(store) as supervisor:
        turn = editor.prompt("go")
        await editor.hears("first ")
        [run] = (await supervisor.list()).runs
        await supervisor.stop(run.id, reason="enough", actor="ann")
        answer = await ended(turn)
        assert answer.stop_reason == "cancelled"
        assert answer.field_meta["stoppable"]["reason"]["message"] == "enough"
