"""An agent that stops as an agent should: it cuts what can be cut, waits for the rest, and writes down what it did."""

import asyncio
import inspect
import json
from urllib.parse import urlsplit

from stopbench.subject import Subject


class Perfect(Subject):
    SUB_AGENT = "task"

    async def open(self):
        self.messages, self.stop = [], None
        self.tools_by_name = {tool.__name__: tool for tool in self.tools}

    async def ask(self, text, *, streamed=False):
        self.stop = asyncio.Event()
        self.messages.append({"role": "user", "content": text})
        functions = {"helper": self.helper} if self.delegates else self.tools_by_name
        try:
            return await self.work(self.messages, functions, streamed=streamed)
        finally:
            self.stop = None

    async def ask_streamed(self, text):
        return await self.ask(text, streamed=True)

    def cancel(self, turn):
        if self.stop is None:
            turn.cancel()
        else:
            self.stop.set()

    def state(self, result, error):
        return result if error is None else super().state(result, error)

    async def helper(self):
        return await self.work([{"role": "user", "content": "Book a trip."}], self.tools_by_name)

    async def work(self, messages, functions, *, streamed=False):
        while True:
            message = {"role": "assistant", "content": ""}
            is_cut = not await self.unless_stopped(self.call_model(list(messages), message, streamed=streamed))
            if not is_cut or message["content"]:
                messages.append(message)
            calls = message.get("tool_calls", [])
            if is_cut or not calls:
                return "stopped" if is_cut else "completed"
            results = await asyncio.gather(*(self.call_tool(functions, call) for call in calls))
            for call, result in zip(calls, results, strict=True):
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
            if self.stop.is_set():
                return "stopped"

    async def call_tool(self, functions, call):
        function = functions[call["function"]["name"]]
        if not inspect.iscoroutinefunction(function):
            return await asyncio.to_thread(function)  # nothing can end a thread
        if function == self.helper:
            return await function()
        return await self.unless_stopped(function()) or "It was stopped, and may have taken effect."

    async def unless_stopped(self, work):
        task, stopped = asyncio.ensure_future(work), asyncio.ensure_future(self.stop.wait())
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
        return None if task.cancelled() else task.result()

    async def call_model(self, messages, message, *, streamed):
        address = urlsplit(self.url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        try:
            body = json.dumps({"messages": messages, "stream": streamed}).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: model\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            while (line := (await reader.readline()).strip()) != b"data: [DONE]":
                if line.startswith(b"data:"):
                    message["content"] += json.loads(line[5:])["choices"][0]["delta"].get("content", "")
                elif line.startswith(b"Content-Length:"):
                    length = int(line.split()[1])
                    await reader.readline()
                    answer = json.loads(await reader.readexactly(length))
                    message |= answer["choices"][0]["message"] if "choices" in answer else {"content": "refused"}
                    break
        finally:
            writer.close()
        return True
