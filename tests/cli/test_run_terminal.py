"""`stoppable run` and `demo` in a real terminal: Ctrl-C once, twice, three times, never swallowed."""

import json
import re
import signal

import pytest

from ..waiting import wait_until
from .terminal import CTRL_C, DEADLINE, Terminal

UNSAFE = {chr(code) for code in (*range(0x20), *range(0x7F, 0xA0))} - set("\n\r\x1b")


def test_ctrl_c_once_lets_what_is_in_flight_finish(tmp_path):
    with Terminal("run", "cli.terminal_agents:answered", str(tmp_path / "answer")) as terminal:
        terminal.see("running")
        terminal.see("in flight  llm:call")
        terminal.see("Ctrl-C stops it")
        terminal.press(CTRL_C)
        terminal.see(r"stopping \(graceful\): llm:call in flight: waiting up to \d+ s for its answer")
        terminal.see("Ctrl-C again cuts off the calls in flight; clean-up runs")
        (tmp_path / "answer").touch()
        assert terminal.end() == 130
    for told in ("■ stopped", "graceful, no force needed", "reason +Ctrl-C", "llm call finished", "answer 0"):
        assert terminal.see(told)
    assert b"\x1b[36m" in terminal.raw


def test_ctrl_c_twice_cuts_it_off_and_clean_up_runs():
    with Terminal("run", "served_agents:long_call") as terminal:
        terminal.see("in flight  llm:long")
        terminal.press(CTRL_C)
        terminal.see("Ctrl-C again cuts off")
        terminal.press(CTRL_C)
        assert terminal.end() == 130
    for told in ("■ stopped", "immediate, highest rung cancel", "llm long cancelled", "ran to its end", "cleaned up"):
        assert terminal.see(told)


def test_ctrl_c_three_times_kills_and_says_what_could_not_be_ended():
    with Terminal("run", "cli.terminal_agents:stuck") as terminal:
        terminal.see("in flight  tool:stuck")
        for told in ("Ctrl-C again cuts off", "Ctrl-C again kills it", "Ctrl-C again leaves"):
            terminal.press(CTRL_C)
            terminal.see(told)
        assert terminal.end() == 7
    for told in ("lost", "kill, highest rung lost", r"terminal_agents\.py:\d+", "abandoned"):
        assert terminal.see(told)


def test_a_fourth_ctrl_c_leaves_at_once():
    with Terminal("run", "cli.terminal_agents:stuck_for_long") as terminal:
        terminal.see("in flight  tool:stuck")
        for told in ("Ctrl-C again cuts off", "Ctrl-C again kills it", "Ctrl-C again leaves"):
            terminal.press(CTRL_C)
            terminal.see(told)
        terminal.press(CTRL_C)
        terminal.see("left at once")
        assert terminal.end() == 130


def test_in_a_process_even_what_is_stuck_is_ended():
    with Terminal("run", "--process", "cli.terminal_agents:stuck") as terminal:
        terminal.see("in flight  tool:stuck")  # before that, the first press would end it
        for told in ("Ctrl-C again cuts off", "Ctrl-C again kills it"):
            terminal.press(CTRL_C)
            terminal.see(told)
        terminal.press(CTRL_C)
        assert terminal.end() == 130
    terminal.see("■ stopped")
    terminal.see("kill, highest rung kill")


def test_ctrl_c_that_ends_a_command_too_is_a_stop_and_no_failure():
    with Terminal("run", "served_agents:saving") as terminal:
        terminal.see("it saves")
        terminal.see("in flight  spawn:sh")  # by then Ctrl-C is handled
        wait_until(lambda: terminal.executes("sleep"), DEADLINE)
        terminal.press(CTRL_C)
        assert terminal.end() == 130
    assert terminal.see("■ stopped")
    assert "Traceback" not in terminal.text, terminal.text


def test_a_term_is_a_graceful_stop_with_its_own_code():
    with Terminal("run", "served_agents:waiting") as terminal:
        terminal.see("latest  so far")
        terminal.signal(signal.SIGTERM)
        assert terminal.end() == 143
    terminal.see("reason +SIGTERM")


def test_what_a_generator_yields_stays_when_it_is_stopped():
    with Terminal("run", "served_agents:yielding", '{"count": 10000}') as terminal:
        terminal.see("latest  .*word 1")
        terminal.press(CTRL_C)
        assert terminal.end() == 130
    terminal.see("word 0 word 1 ")
    terminal.see("■ stopped")


@pytest.mark.parametrize(
    ("options", "environment"), [((), {}), (("--json",), {}), ((), {"TERM": "dumb"})], ids=["live", "json", "dumb"]
)
def test_hostile_output_does_not_control_the_terminal(options, environment, tmp_path):
    given = json.dumps({"until": str(tmp_path / "seen")})
    with Terminal("run", "served_agents:hostile", given, *options, **environment) as terminal:
        if not options and not environment:
            terminal.see("in flight")
        (tmp_path / "seen").touch()
        assert terminal.end() == 1
    raw = terminal.raw.decode()
    assert "\x1b]0;" not in raw
    assert "\x1b[2J" not in raw
    assert "\u202e" not in raw
    assert not UNSAFE & set(raw)
    assert r"from a process: \x1b[2J\x1b]0;owned\x07[red]bold[/red]" in terminal.text


def test_the_demo_draws_bars_and_ends_well_and_respects_no_color():
    with Terminal("demo", "--fast", NO_COLOR="1") as terminal:
        terminal.see("three runs of 10 steps")
        terminal.see("━")
        terminal.see("10/10")
        assert terminal.end() == 0
    for told in (r"B +\w+ +■ stopped", "wrong topic", "B step 3/10", "as expected"):
        assert terminal.see(told)
    assert "\x1b[3" not in terminal.raw.decode()


def test_everything_an_agent_prints_is_shown_before_how_it_ended():
    with Terminal("run", "served_agents:printing") as terminal:
        assert terminal.end() == 0
    shown = re.findall(r"printed (\d+)", terminal.text)
    assert shown == [str(number) for number in range(3000)]
    assert terminal.text.index("printed 2999") < terminal.text.index("✓ completed  printing")


def test_in_the_background_the_terminal_does_not_stop_the_process():
    with Terminal("run", "served_agents:echo", "7", is_background=True) as terminal:
        assert terminal.end() == 0
    terminal.see("✓ completed")
