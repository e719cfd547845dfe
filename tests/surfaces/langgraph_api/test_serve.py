"""`stoppable serve` offers its agents over the LangGraph API, unless it is told not to."""

import httpx
from langgraph_sdk import get_sync_client
from tests.served import serving_process

from .conftest import ALONE, DEADLINE, begin, said


def test_serve_offers_it_says_where_and_stops():
    with serving_process("--store", "memory://") as (server, url):
        assert f"\n  LangGraph API at {url}/lg\n" in server.greeting()
        client = get_sync_client(url=f"{url}/lg", api_key="", timeout=DEADLINE, headers=ALONE)
        thread, run_id = begin(client, "waiting", said("go"))
        client.runs.cancel(thread, run_id, wait=True)
        assert client.runs.get(thread, run_id)["status"] == "interrupted"
        assert client.runs.wait(thread, "echo", input=said("hello"))["messages"][-1]["content"] == "hello"
        client.http.client.close()


def test_serve_may_leave_it_out():
    with serving_process("--store", "memory://", "--no-langgraph") as (server, url):
        assert "LangGraph" not in server.greeting()
        assert httpx.get(f"{url}/lg/info", timeout=DEADLINE).status_code == 404


def test_a_key_of_the_server_is_the_key_of_the_client():
    with serving_process("--store", "memory://", STOPPABLE_API_KEY="a key of its own") as (_, url):
        for key, status in (("a key of its own", 200), ("another", 401)):
            headers = {"X-Api-Key": key}
            assert httpx.get(f"{url}/lg/info", headers=headers, timeout=DEADLINE).status_code == status
        client = get_sync_client(url=f"{url}/lg", api_key="a key of its own", timeout=DEADLINE, headers=ALONE)
        assert client.runs.wait(None, "echo", input=said("hello"))["messages"][-1]["content"] == "hello"
        client.http.client.close()
