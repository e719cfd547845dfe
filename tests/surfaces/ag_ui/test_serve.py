"""`stoppable serve` offers its agents over AG-UI, unless it is told not to."""

import pytest
from tests.served import serving_process

from .conftest import Client, Refused, text_of


def test_serve_offers_it_says_where_and_a_client_that_leaves_stops():
    with serving_process("--store", "memory://") as (server, url):
        assert f"\n  AG-UI at {url}/agui/NAME\n" in server.greeting()
        client = Client(url, "waiting")
        with client.stream("go") as stream:
            while next(stream)["type"] != "TEXT_MESSAGE_CONTENT":
                pass
        client.agent = "echo"
        assert text_of(client.ask("hello")) == "hello"
        assert client.said == [("user", "go"), ("assistant", "so far"), ("user", "hello"), ("assistant", "hello")]


def test_serve_may_leave_it_out():
    with serving_process("--store", "memory://", "--no-agui") as (server, url):
        assert "AG-UI" not in server.greeting()
        with pytest.raises(Refused) as refused:
            Client(url, "echo").ask("hello")
        assert refused.value.status == 404
