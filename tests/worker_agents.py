"""Agents of a module that an agent process can import."""

import asyncio
import logging.handlers
import queue
import time
from pathlib import Path

import stoppable


def a_tuple():
    return (1, 2)


def tuples():
    stoppable.set_partial((1, 2))
    stoppable.emit("made", of=(1, 2))
    yield (1, 2)
    yield (3, 4)


async def never_looks(path):
    Path(path).touch()
    await asyncio.sleep(60)


async def looks(path):
    stoppable.check()
    Path(path).touch()
    await asyncio.sleep(60)


async def with_slow_hooks(folder):
    def write(name):
        time.sleep(0.2)
        (Path(folder) / name).touch()

    stoppable.on_stop(lambda: write("stopped"))
    stoppable.on_end(lambda _: write("ended"))
    yield "begun"
    await stoppable.sleep(60)


async def with_a_hook_that_hangs(folder):
    def hang(_):
        (Path(folder) / "called").touch()
        time.sleep(600)

    stoppable.on_end(hang)
    yield "begun"
    await stoppable.sleep(60)


def raises_builtin():
    raise ValueError("mine")


def raises_key_error():
    raise KeyError("mine")


class Own(Exception):
    def __init__(self, text):
        super().__init__(text)


def raises_own():
    raise Own("mine")


class Unprintable(Exception):
    def __str__(self):
        raise TypeError


def raises_unprintable():
    raise Unprintable


async def _listens(path):
    logging.handlers.QueueListener(queue.Queue(), logging.NullHandler()).start()
    Path(path).touch()
    await asyncio.sleep(60)


async def listens_in_a_child(path):
    await (await stoppable.spawn(_listens, path)).outcome()
    await asyncio.sleep(60)


def echoes(question, *, session=None):
    return question, session
