"""Terminals of OpenHands that get a command only when their shell waits for one.

OpenHands sleeps for a fixed time after it has started a shell or cleared a screen, and takes the next prompt that it
sees for the end of the command. On a busy machine that is a late prompt of before: the command seems to have ended at
once, without output. ``python ready_terminals.py PROGRAM`` executes a program with such terminals.
"""

import functools
import re
import runpy
import sys
import time

from openhands.tools.terminal.constants import CMD_OUTPUT_PS1_BEGIN, CMD_OUTPUT_PS1_END
from openhands.tools.terminal.terminal.subprocess_terminal import SubprocessTerminal
from openhands.tools.terminal.terminal.terminal_session import TerminalSession

import stoppable
from stoppable.adapters.openhands.terminals import in_front, shell_of

READY_SECONDS = 120
CALM_SECONDS = 1.0
BEGIN, END = CMD_OUTPUT_PS1_BEGIN.strip(), CMD_OUTPUT_PS1_END.strip()
GREETED = re.compile(rf"ready-42\s.*{re.escape(END)}\s*$", re.DOTALL)


def install():
    """Make the terminals of this process such ones; before ``stoppable`` replaces what executes a command."""
    SubprocessTerminal.initialize = greeted(SubprocessTerminal.initialize)
    TerminalSession.execute = settled(TerminalSession.execute)


def greeted(plain):
    @functools.wraps(plain)
    def initialize(self):
        if self._initialized:
            return
        plain(self)
        self.send_keys("echo ready-$((6 * 7))")  # behind what was typed before, whose prompts come before its own
        assert self._wait_for_output(GREETED, READY_SECONDS), self.read_screen()
        self.clear_screen()

    return initialize


def settled(plain):
    @functools.wraps(plain)
    def execute(self, action):
        if not action.is_input:
            settle(self.terminal)
        return plain(self, action)

    return execute


def settle(terminal):
    """Wait until the screen has one prompt and nothing else, or has not changed for a while since there is one."""
    deadline, screen, since = time.monotonic() + READY_SECONDS, None, 0.0
    run = stoppable.current_run()
    while run is None or not run.token.stopped:  # a stop presses Ctrl-C until its tool call is over
        if (pane := getattr(terminal, "pane", None)) is not None:
            pane.cmd("clear-history")  # tmux may keep there what was cleared
        seen, before = terminal.read_screen().strip(), screen
        if seen != before:
            screen, since = seen, time.monotonic()
        elif seen.endswith(END) and in_front(shell_of(terminal)) is None:
            is_clear = seen.startswith(BEGIN) and seen.count(END) == 1
            if is_clear or time.monotonic() - since > CALM_SECONDS:
                return
        assert time.monotonic() < deadline, f"the shell is not ready: {seen}"
        time.sleep(0.03)


if __name__ == "__main__":
    install()
    runpy.run_path(sys.argv[1], run_name="__main__")
