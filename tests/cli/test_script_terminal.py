"""A script with `stoppable.run` in a real terminal: Ctrl-C ends it with one line, and no traceback of ours."""

import pytest

from .terminal import CTRL_C, Terminal

AGENT = """
import sys, time
import stoppable

@stoppable.agent
async def patient():
    print("ready", flush=True)
    await stoppable.sleep(600)

@stoppable.agent(policy=stoppable.Policy(grace=60, cancel=60))
def stubborn():
    print("ready", flush=True)
    while True:
        try:
            stoppable.sync.sleep(600)
        except stoppable.AgentStopped:
            print("goes on", flush=True)
            while stoppable.current_run().receipt.mode == "graceful":
                time.sleep(0.01)
            print("still goes on", flush=True)
            time.sleep(600)

"""


def script(code):
    return Terminal(program=("-c", AGENT + code))


@pytest.mark.parametrize("hook", ["", "sys.excepthook = lambda *_: print('never for this')\n"])
def test_ctrl_c_ends_a_script_with_one_line_and_130(hook):
    with script(hook + "stoppable.run(patient)") as terminal:
        terminal.see("ready\n")  # whole: a Ctrl-C drops what nobody has read
        terminal.press(CTRL_C)
        assert terminal.end() == 130
    assert terminal.text.replace("^C", "").split() == ["ready", "patient", "was", "stopped", "by", "Ctrl-C"]


def test_the_third_press_is_one_line_too():
    with script("import stoppable.sync\nstoppable.run(stubborn)") as terminal:
        terminal.see("ready\n")
        terminal.press(CTRL_C)
        terminal.see("goes on")
        terminal.press(CTRL_C)
        terminal.see("still goes on")  # two presses at once would be one signal
        terminal.press(CTRL_C)
        terminal.see("stubborn was killed by Ctrl-C; its clean-up may not have run")
        assert terminal.end() == 130
    assert "Traceback" not in terminal.text


def test_a_script_that_handles_the_stop_goes_on():
    with script(
        "try:\n    stoppable.run(patient)\nexcept stoppable.RunStopped as stopped:\n    print('handled', stopped)\n"
    ) as terminal:
        terminal.see("ready\n")
        terminal.press(CTRL_C)
        terminal.see("handled")
        assert terminal.end() == 0
    assert "was stopped by Ctrl-C\r" not in terminal.raw.decode().split("handled")[0]


def test_an_error_after_ctrl_c_has_its_traceback():
    with script(
        "try:\n    stoppable.run(patient)\nexcept stoppable.RunStopped:\n    raise ValueError from None\n"
    ) as terminal:
        terminal.see("ready\n")
        terminal.press(CTRL_C)
        terminal.see("Traceback")
        assert terminal.end() == 1
    assert "ValueError" in terminal.text
