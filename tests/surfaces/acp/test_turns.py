"""The official client talks to an agent: text, tools, errors, sessions."""

import acp
import pytest

from .conftest import OWN, PLAIN, editing, ended


async def test_a_turn_has_the_text_and_the_result_of_the_agent():
    async with editing(f"{PLAIN}:echo") as editor:
        assert await editor.ask("one two") == "end_turn"
        await editor.hears("one two ")
        assert editor.said() == "one two "


async def test_what_agents_print_does_not_break_the_protocol():
    async with editing(f"{OWN}:talkative") as editor:
        assert await editor.ask("heard") == "end_turn"
        await editor.hears("heard")
        assert editor.said() == "heard"


async def test_items_of_a_generator_are_text():
    async with editing(f"{OWN}:talker") as editor:
        assert await editor.ask("once") == "end_turn"
        await editor.hears("once")


async def test_tools_are_tool_calls_also_those_of_sub_agents():
    async with editing(f"{OWN}:toolbox") as editor:
        assert await editor.ask("go") == "end_turn"
        done = ["in_progress", "completed"]
        await editor.hears("done")
        assert sorted(editor.calls()) == [["read", *done], ["search", *done], ["write", *done]]


async def test_an_error_of_the_agent_is_an_error_with_its_words():
    async with editing(f"{PLAIN}:failing") as editor:
        with pytest.raises(acp.RequestError, match="ValueError: the tool is broken") as caught:
            await ended(editor.prompt("go"))
        assert caught.value.code == -32603
        assert caught.value.data["stoppable"]["status"] == "failed"
        await editor.hears("before ")


async def test_an_agent_hears_where_it_is():
    async with editing(f"{OWN}:placed") as editor:
        assert await editor.ask("here") == "end_turn"
        await editor.hears("here in / for 32")


async def test_a_prompt_may_have_files():
    async with editing(f"{OWN}:talkative") as editor:
        link = acp.resource_link_block("notes", "file:///notes.txt")
        file = acp.resource_block(acp.embedded_text_resource("file:///code.py", "pass"))
        blocks = [acp.text_block("see"), link, file]
        await editor.connection.prompt(session_id=editor.session, prompt=blocks)
        await editor.hears("see\nnotes: file:///notes.txt\nfile:///code.py:\npass")
        with pytest.raises(acp.RequestError, match="not image") as caught:
            await editor.connection.prompt(session_id=editor.session, prompt=[acp.image_block("aGk=", "image/png")])
        assert caught.value.code == -32602


async def test_sessions_are_apart_and_each_remembers():
    async with editing(f"{OWN}:chat") as editor:
        await editor.ask("one")
        first = editor.session
        await editor.open()
        await editor.ask("other")
        await editor.hears("user: other")  # an update may come after the answer
        editor.session, editor.updates = first, []
        await editor.ask("two")
        await editor.hears("user: one | assistant: user: one | user: two")
        assert {session for session, _ in editor.updates} == {first}


async def test_a_prompt_beside_another_of_its_session_is_refused():
    async with editing(f"{PLAIN}:waits") as editor:
        turn = editor.prompt("go")
        await editor.hears("first ")
        with pytest.raises(acp.RequestError, match="is at work") as caught:
            await ended(editor.prompt("and this"))
        assert caught.value.code == -32600
        await editor.cancel()
        assert (await ended(turn)).stop_reason == "cancelled"


async def test_a_session_is_loaded_with_its_stopped_turn_by_another_process(tmp_path):
    store = ("--store", f"sqlite:///{tmp_path}/runs.db")
    async with editing(f"{OWN}:chat", *store) as editor:
        await editor.ask("one")
        turn = editor.prompt("wait")
        await editor.hears("half an answ")
        await editor.cancel()
        await ended(turn)
        session = editor.session
    async with editing(f"{OWN}:chat", *store) as editor:
        await editor.connection.load_session(cwd="/", session_id=session, mcp_servers=[])
        await editor.hears("half an answ")
        assert editor.said("user_message_chunk") == "onewait"
        assert editor.said() == "user: onehalf an answ"
        editor.session = session
        assert await editor.ask("two") == "end_turn"
        await editor.hears("user: wait | assistant: half an answ | user: two")
        with pytest.raises(acp.RequestError, match="no session") as caught:
            await editor.connection.load_session(cwd="/", session_id="nobody's", mcp_servers=[])
        assert caught.value.code == -32002
