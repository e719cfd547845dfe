"""Commands for a server in a real terminal: watch, and a stop that asks."""

import pytest

from .terminal import CTRL_C, Terminal


def test_watch_is_a_live_table_that_ctrl_c_leaves(served, client, unique):
    with Terminal("watch", "--interval", "0.1", STOPPABLE_URL=served) as terminal:
        terminal.see("Ctrl-C leaves")
        run_id = client.start("waiting", run_id=unique, owner="ann").id
        terminal.see(rf"{unique} +waiting +ann +● running")
        client.stop(run_id, reason="enough", wait=30)
        terminal.see(rf"{unique} +waiting +ann +■ stopped +\S+ +\S+ +enough \(local\), graceful")
        terminal.press(CTRL_C)
        assert terminal.end() == 0
    assert b"^C" not in terminal.raw
    assert b"\x1b[?1049h" in terminal.raw
    assert terminal.raw.rindex(b"\x1b[?1049l") > terminal.raw.rindex(b"\x1b[?1049h")


def test_watch_of_one_run_shows_it_until_it_is_over(served, client, unique):
    run_id = client.start("calling", run_id=unique).id
    with Terminal("watch", run_id, STOPPABLE_URL=served) as terminal:
        terminal.see("in flight  llm:call")
        terminal.see("latest  answer")
        client.stop(run_id, reason="enough")
        assert terminal.end() == 6
    terminal.see("■ stopped")
    terminal.see("enough")


def test_leaving_a_watch_leaves_the_run_alone(served, client, unique):
    run_id = client.start("waiting", run_id=unique).id
    with Terminal("watch", run_id, STOPPABLE_URL=served) as terminal:
        terminal.see("latest  so far")
        terminal.press(CTRL_C)
        terminal.see("the run goes on")
        assert terminal.end() == 130
    assert client.get(run_id).stop is None
    client.stop(run_id, wait=30)


def test_a_stop_of_many_asks_and_takes_no_for_an_answer(served, client, unique):
    run_id = client.start("waiting", run_id=unique, owner=unique).id
    with Terminal("stop", "--owner", unique, STOPPABLE_URL=served) as terminal:
        terminal.see(unique)
        terminal.see(r"Stop 1 run \(graceful\)\? \[y/N\]")
        terminal.press("n\n")
        assert terminal.end() == 4
    assert client.get(run_id).stop is None
    client.stop(run_id, wait=30)


@pytest.mark.parametrize("key", [CTRL_C, b"\x04"], ids=["ctrl-c", "ctrl-d"])
def test_a_question_that_is_left_stops_nothing(served, client, unique, key):
    run_id = client.start("waiting", run_id=unique, owner=unique).id
    with Terminal("stop", "--owner", unique, "--wait", "9", STOPPABLE_URL=served) as terminal:
        terminal.see(r"\[y/N\]: ")
        terminal.sleeps()
        terminal.press(key)
        terminal.see("\nerror: nothing was stopped\n")
        assert terminal.end() == 130
    assert client.get(run_id).stop is None
    client.stop(run_id, wait=30)


def test_an_error_has_no_colour_where_none_is_wanted(served):
    with Terminal("release", "nobody", STOPPABLE_URL=served, NO_COLOR="1") as terminal:
        terminal.see("error: ")
        assert terminal.end() == 3
    assert b"\x1b[3" not in terminal.raw
