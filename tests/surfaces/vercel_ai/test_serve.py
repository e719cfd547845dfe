"""`stoppable serve` offers its agents to the AI SDK, unless it is told not to."""

import httpx
from tests.served import serving_process

from .conftest import DEADLINE, Client, assert_aborted, text_of


def test_serve_offers_it_says_where_and_stops():
    with serving_process("--store", "memory://") as (server, url):
        assert f"\n  Vercel AI SDK at {url}/vercel/NAME\n" in server.greeting()
        client = Client(url, "waiting")
        with client.stream("go") as stream:
            parts = []
            for part in stream:
                parts.append(part)
                if part["type"] == "text-delta":
                    client.stop()
        assert_aborted(parts, client.run_id)
        client.agent = "echo"
        assert text_of(client.ask("hello")) == "hello"


def test_serve_may_leave_it_out():
    with serving_process("--store", "memory://", "--no-vercel") as (server, url):
        assert "Vercel" not in server.greeting()
        assert httpx.post(f"{url}/vercel/echo", json={}, timeout=DEADLINE).status_code == 404
