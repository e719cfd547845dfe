"""A call of a tool is a run of an agent, and its result is what the agent returns."""

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError
from tests.waiting import until

import stoppable

from ..openai_api.agents import AGENTS as OTHERS
from . import tools
from .conftest import DEADLINE, Call, client_of, read, runs, serving, text_of

AGENTS = {**tools.AGENTS, **{one.__name__: one for one in OTHERS if one.__name__ in {"counting", "echo", "failing"}}}
pytestmark = pytest.mark.parametrize("mode", ["auto", "legacy"])


async def test_the_tools_are_the_agents(mode):
    with serving(agents=AGENTS) as service:
        async with client_of(service, mode) as client:
            found = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert set(found) == set(AGENTS)
            tool = found["reporting"]
            assert tool.description == "Report progress, and return an object."
            assert tool.input_schema == {
                "type": "object",
                "properties": {"steps": {"type": "integer", "default": 2}},
                "required": [],
                "additionalProperties": False,
            }
            assert found["nameless"].input_schema["required"] == ["input"]
            assert client.server_info.name == "stoppable"
            assert client.server_info.version == stoppable.__version__


async def test_a_result_is_what_the_agent_returns(mode):
    with serving(agents=AGENTS) as service:
        async with client_of(service, mode) as client:
            said = await client.call_tool("echo", {"text": "one two"})
            assert (text_of(said), said.is_error) == ("one two", False)
            assert said.meta["stoppable/run"]["run"] == runs(service)[0].id
            made = await client.call_tool("reporting", {"steps": 1})
            assert (made.structured_content, text_of(made)) == ({"steps": 1}, '{"steps":1}')
            assert text_of(await client.call_tool("saying")) == "so it is", "what it has said, if it returns nothing"
            assert text_of(await client.call_tool("counting", {"count": 3})) == "0\n1\n2\n"
            assert text_of(await client.call_tool("nameless", {"input": 7})) == "[7]"


async def test_an_agent_that_fails_is_an_error_with_what_it_had_said(mode):
    with serving(agents=AGENTS) as service:
        async with client_of(service, mode) as client:
            failed = await client.call_tool("failing", {"text": "go"})
            assert failed.is_error
            assert text_of(failed) == "ValueError: the tool is broken\nWhat it had produced: before "


async def test_progress_is_what_the_agent_says_and_reports(mode):
    with serving(agents=AGENTS) as service:
        async with client_of(service, mode) as client:
            call = Call(client, "reporting", {"steps": 2})
            await call.task
            await until(lambda: len(call.heard) >= 4, DEADLINE)  # a notification has a task of its own
            run_id = runs(service)[0].id
            assert [text for _, text in call.heard] == [
                f"reporting is run {run_id}", "step 0", "step 1", 'cost {"tokens":7}',
            ]  # fmt: skip
            places = [done for done, _ in call.heard]
            assert places == sorted(set(places)), "it increases, as the protocol wants it"
            call = Call(client, "echo", {"text": "one two"})
            await call.task
            await until(lambda: call.words == "one two ", DEADLINE)


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("reporting", {"steps": "two"}, "input.steps: "),
        ("reporting", {"step": 2}, "reporting cannot be called like that: "),
        ("echo", {}, "echo cannot be called like that: "),
        ("nameless", {}, "give the one argument under the name 'input'"),
    ],
)
async def test_wrong_arguments_are_told_in_a_result_and_start_nothing(mode, tool, arguments, message):
    with serving(agents=AGENTS) as service:
        async with client_of(service, mode) as client:
            refused = await client.call_tool(tool, arguments)
            assert refused.is_error
            assert message in text_of(refused)
            assert runs(service) == ()


async def test_an_unknown_tool_is_an_error_of_the_protocol(mode):
    with serving(agents=AGENTS) as service:
        async with client_of(service, mode) as client:
            with pytest.raises(MCPError, match="no agent 'nobody'") as refused:
                await client.call_tool("nobody", {})
            assert refused.value.code == types.INVALID_PARAMS


async def test_runs_are_resources(mode):
    with serving(agents=AGENTS) as service:
        async with client_of(service, mode) as client:
            for number in range(3):
                await client.call_tool("echo", {"text": f"{number}"})
            resources = (await client.list_resources()).resources
            assert [one.description for one in resources] == ["echo: completed"] * 3
            assert [one.name for one in resources] == [run.id for run in runs(service)]
            facts = await read(client, resources[0].name)
            assert (facts["agent"], facts["status"], facts["sentence"]) == ("echo", "completed", "Completed.")
            [template] = (await client.list_resource_templates()).resource_templates
            assert template.uri_template == "stoppable://runs/{run_id}"
            for uri in ("stoppable://runs/nobody", "stoppable://else", "file:///etc/passwd", "stoppable://runs/../x"):
                with pytest.raises(MCPError, match="no resource"):
                    await client.read_resource(uri)
