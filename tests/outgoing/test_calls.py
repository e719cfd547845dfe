"""How a request is described, and how the connection of a thread that waits is found."""

import socket
import sys
import threading

import httpx

import stoppable
from stoppable._engine.outgoing import calls


def test_an_argument_that_cannot_be_described_is_left_to_the_client():
    def label():
        raise TypeError

    with stoppable.open_run("agent") as run:
        call = calls.begin(label)
        assert run.in_flight == ("http:request",)
        call.leave()


def test_the_socket_of_a_thread_is_only_looked_for_inside_the_request():
    """A thread that has left the request meanwhile may use a socket that is none of our business."""
    ready, done = threading.Event(), threading.Event()
    frames = []

    def request(connection):
        frames.append(sys._getframe())
        ready.set()
        done.wait(30)
        return connection

    def work():
        with socket.socket() as mine:
            request(mine)

    thread = threading.Thread(target=work)
    thread.start()
    assert ready.wait(30)
    assert calls._socket_of(thread.ident, frames[0]) is None  # it is a variable of the frame itself, not of one inside
    assert calls._socket_of(thread.ident, frames[0].f_back) is not None
    other = sys._getframe()  # not on the stack of that thread
    assert calls._socket_of(thread.ident, other) is None
    done.set()
    thread.join()


def test_an_address_that_is_wrong_raises_what_httpx_raises():
    with stoppable.open_run("agent"):
        for url in ("", "http://", "nonsense:"):
            try:
                httpx.get(url)
            except (httpx.HTTPError, httpx.InvalidURL):
                continue
            raise AssertionError(url)
