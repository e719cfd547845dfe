"""The beginning of an id is enough wherever an id is: in every command, with a server and on a store."""

import pytest

from stoppable.cli.exits import Exit
from stoppable.client import Client

from ..served import server_process
from .conftest import Command

NOBODY = "http://127.0.0.1:9"
COMMANDS = [["show"], ["tree"], ["receipt"], ["watch", "--json"], ["stop", "--mode", "graceful"]]


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A store with two runs that begin alike, and two holds; their server is gone."""
    store = f"sqlite:///{tmp_path_factory.mktemp('store')}/runs.db"
    with server_process("--store", store) as url, Client(url) as client:
        for run_id in ("alike-one", "alike-two"):
            client.start("echo", 7, run_id=run_id).wait(30)
    return store


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_server_is_asked_with_the_beginning_of_an_id(stoppable, client, unique, command):
    client.start("echo", 7, run_id=unique).wait(30)
    name, *options = command
    assert stoppable(name, unique[:-2], *options).output.count(unique) or name == "watch"
    short = stoppable(name, unique[:3], *options, code=Exit.NOT_FOUND)
    assert "a prefix needs four characters" in short.stderr
    client.start("echo", 7, run_id=f"{unique}-too").wait(30)
    told = stoppable(name, unique[:-2], *options, code=Exit.USAGE).stderr
    assert f"more than one run starts with '{unique[:-2]}': {unique}-too, {unique}" in told


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_store_is_asked_with_the_beginning_of_an_id(stored, command):
    stoppable = Command(NOBODY)
    name, *options = command
    stoppable(name, "alike-o", *options, "--store", stored)
    assert (
        "a prefix needs four characters"
        in stoppable(name, "ali", *options, "--store", stored, code=Exit.NOT_FOUND).stderr
    )
    told = stoppable(name, "alike", *options, "--store", stored, code=Exit.USAGE).stderr
    assert "more than one run starts with 'alike': alike-two, alike-one" in told
    assert "no run 'alike-x'" in stoppable(name, "alike-x", *options, "--store", stored, code=Exit.NOT_FOUND).stderr


def test_a_hold_is_released_by_the_beginning_of_its_id(stoppable, unique):
    held = stoppable.json("stop", "--owner", unique, "--hold", "--yes")["hold"]
    assert "a prefix needs four characters" in stoppable("release", held[:3], code=Exit.NOT_FOUND).stderr
    assert held in stoppable("release", held[:8]).stderr
    assert "lists the holds" in stoppable("release", held[:8], code=Exit.NOT_FOUND).stderr


def test_of_many_runs_that_begin_alike_some_are_named(stoppable, client, unique):
    for number in range(12):
        client.start("echo", 7, run_id=f"{unique}-{number}").wait(30)
    told = stoppable("show", unique, code=Exit.USAGE).stderr
    assert f"{unique}-2 and 2 more" in told
    assert told.count("\n") == 1
