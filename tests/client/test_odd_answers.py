"""Answers of something that is no server of ours, and ids and inputs that no server takes."""

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from stoppable.client import ServerError
from stoppable.errors import HoldNotFound, InvalidArgument, RunNotFound

CALLS = {
    "get": lambda client: client.get("abcd"),
    "tree": lambda client: client.tree("abcd"),
    "receipt": lambda client: client.receipt("abcd"),
    "start": lambda client: client.start("echo"),
    "stop": lambda client: client.stop("abcd"),
    "stop_where": lambda client: client.stop_where(all=True),
    "list": lambda client: client.list(),
    "holds": lambda client: client.holds(),
    "audit": lambda client: client.audit(),
    "agents": lambda client: client.agents(),
}
ODD = b'{"runs": [1], "receipts": [{}], "hold": 3, "receipt": {}, "holds": [{}], "entries": [{}], "agents": [1]}'
BODIES = {
    "null": b"null",
    "list": b"[1]",
    "odd": ODD,
    "html": b"<html>",
    "deep": b"[" * 200_000,
}


@contextlib.contextmanager
def answering(status, body):
    """Yield the address of a server that answers everything with the same."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self):
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_DELETE = answer  # noqa: N815 - http.server looks for these names

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(60)


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_an_answer_that_makes_no_sense_says_what_to_check(connect, body):
    with answering(200, body) as url:
        client = connect(url)
        for name, call in CALLS.items():
            with pytest.raises(ServerError, match="check STOPPABLE_URL"):
                pytest.fail(f"{name}: {call(client)!r}")


def test_a_redirect_has_done_nothing(connect):
    with answering(307, b"") as url:
        client = connect(url)
        for call in (*CALLS.values(), lambda client: client.release("abcd")):
            with pytest.raises(ServerError, match="status 307"):
                call(client)


@pytest.mark.parametrize("odd", ["", ".", "..", "a/b"])
def test_an_id_that_is_no_part_of_a_path_is_not_found(client, odd):
    with pytest.raises(RunNotFound):
        client.get(odd)
    with pytest.raises(HoldNotFound):
        client.release(odd)


@pytest.mark.parametrize("odd", [float("nan"), {"a": float("inf")}, "\udcff", {1, 2}], ids=ascii)
def test_an_input_without_a_json_form_is_refused_before_it_is_sent(client, odd):
    with pytest.raises(InvalidArgument, match="no JSON form"):
        client.start("echo", odd)


def test_an_id_in_no_encoding_is_refused(client):
    with pytest.raises(InvalidArgument):
        client.get("a\udcffb")


@pytest.mark.parametrize("url", ["http://[::1", "http://here:port", "http://here:99999"])
def test_an_address_that_makes_no_sense_is_refused(connect, url):
    with pytest.raises(InvalidArgument, match="not the URL of a server"):
        connect(url)


def test_an_address_with_a_path_too_many_says_what_to_check(connect, server):
    with pytest.raises(ServerError, match="check STOPPABLE_URL"):
        connect(f"{server}/somewhere").list()
