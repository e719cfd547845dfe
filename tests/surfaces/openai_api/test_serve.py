"""`stoppable serve` offers its agents over the OpenAI API, unless it is told not to."""

import openai
import pytest
from tests.served import serving_process


def test_serve_offers_it_and_says_where():
    with serving_process("--store", "memory://") as (server, url):
        assert f"\n  OpenAI API at {url}/v1\n" in server.greeting()
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            assert "echo" in [model.id for model in client.models.list()]
            response = client.responses.create(model="waiting", input="go", background=True)
            cancelled = client.responses.cancel(response.id)
            assert cancelled.status == "cancelled"
            assert client.responses.create(model="echo", input="hello").output_text == "hello"


def test_serve_may_leave_it_out():
    with serving_process("--store", "memory://", "--no-openai") as (server, url):
        assert "OpenAI" not in server.greeting()
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            with pytest.raises(openai.NotFoundError):
                client.models.list()


def test_a_key_of_the_server_is_the_key_of_the_client():
    with serving_process("--store", "memory://", STOPPABLE_API_KEY="a key of its own") as (_, url):
        with openai.OpenAI(base_url=f"{url}/v1", api_key="a key of its own", max_retries=0) as client:
            assert client.responses.create(model="echo", input="hello").output_text == "hello"
        with openai.OpenAI(base_url=f"{url}/v1", api_key="another", max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError):
                client.responses.create(model="echo", input="hello")
