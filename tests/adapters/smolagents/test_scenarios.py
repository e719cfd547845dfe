"""Agents of smolagents in every scenario: those that call tools, and those that write code."""

import ast
import json
import re

from bench.frameworks_unmodified.with_smolagents import Smolagents
from smolagents import CodeAgent
from tests.adapters.scenarios.history import texts_of
from tests.adapters.scenarios.suite import AdapterScenarios

from stoppable.adapters import smolagents
from stoppable.adapters.turn import NO_EFFECT
from stoppable.testing import Reply, ToolCall


class TestToolCallingAgent(AdapterScenarios):
    chat = Smolagents
    merges_users = True
    fine = Reply(tool_calls=[ToolCall(name="final_answer", arguments=json.dumps({"answer": "Fine."}), id="call-0")])

    def install(self):
        smolagents.install()

    def answers_in(self, messages):
        """Return the answers by name: smolagents writes calls and results as text, the results in order of the ids."""
        [calls] = [
            ast.literal_eval(text.partition("Calling tools:\n")[2])
            for text in texts_of(messages, "assistant")
            if "Calling tools:\n" in text
        ]
        names = {call["id"]: call["function"]["name"] for call in calls}
        [observed] = re.findall(r"Observation:\n(.*?)(?=New task:|\Z)", texts_of(messages, "user")[-1], re.DOTALL)
        if "Call id: " in observed:
            answers = re.findall(r"Call id: (.*)\n(.*)", observed)
            return {names[call_id]: answer for call_id, answer in answers}
        return dict(zip((names[call_id] for call_id in sorted(names)), observed.strip().splitlines(), strict=True))


class Coder(Smolagents):
    KIND = CodeAgent

    def agent(self, tools, **options):
        # The code waits for the test: the limit that smolagents has for it must not end it on a slow machine.
        return super().agent(tools, executor_kwargs={"timeout_seconds": 100}, **options)


class TestCodeAgent(AdapterScenarios):
    chat = Coder
    is_parallel = False
    merges_users = True
    fine = Reply('<code>final_answer("Fine.")</code>')

    def install(self):
        smolagents.install()

    def reply(self, text, calls, **options):
        lines = [f"print({call.name}({self._arguments(call)}))" for call in calls]
        return Reply("\n".join([text, "<code>", *lines, "</code>"]).strip(), **options)

    @staticmethod
    def _arguments(call):
        return ", ".join(f"{name}={value!r}" for name, value in json.loads(call.arguments).items())

    def answers_in(self, messages):
        """Return what the model is told of the tools that its code called: in lines of the log, or one by one."""
        [observed] = re.findall(r"Observation:\n(.*?)(?=New task:|\Z)", texts_of(messages, "user")[-1], re.DOTALL)
        if NO_EFFECT in observed:
            return {"book_async": NO_EFFECT}
        answers = re.findall(r"^(book_sync|book_async|look_up|helper): (.*)$", observed, re.MULTILINE)
        printed = re.findall(r"^(book_sync|book_async|look_up) done$", observed, re.MULTILINE)
        return {name: f"{name} done" for name in printed} | dict(answers)
