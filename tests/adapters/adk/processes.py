"""Processes that have google-adk imported already: that takes five seconds of a processor, and many tests need one."""

import contextlib
import logging
import multiprocessing
import multiprocessing.forkserver
import os
import queue
import re
import runpy
import sys
import threading
import warnings

from .world import DEADLINE

CONTEXT = multiprocessing.get_context("forkserver")
# Only what is not ours: stoppable is imported anew in each.
CONTEXT.set_forkserver_preload(["google.adk.cli.fast_api", "google.adk.cli.cli_tools_click", "google.adk.runners"])


def prepare():
    """Start the process that the others are forked from, so that no test leaves it behind."""
    multiprocessing.forkserver.ensure_running()


def _be(said, listener, cwd, environment, arguments):
    """Be `python` with these arguments: a module, or code; a socket that it is to serve is in LISTENER."""
    for stream in (1, 2):
        os.dup2(said.fileno(), stream)
    said.close()
    os.chdir(cwd)
    os.environ.update(environment)
    if listener is not None:
        os.environ["LISTENER"] = str(listener.detach())
    sys.stdout.reconfigure(line_buffering=True)
    sys.path.insert(0, str(cwd))
    warnings.resetwarnings()
    warnings.simplefilter("ignore")
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # in development mode it reports what is slow here
    option, what, *rest = arguments
    sys.argv = [what, *rest]
    if option == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        exec(compile(what, "<code>", "exec"), {"__name__": "__main__"})


@contextlib.contextmanager
def process(*arguments, cwd, listener=None, **environment):
    """Run Python in a process of its own, and yield what is to be known of it."""
    ours, theirs = CONTEXT.Pipe(duplex=False)
    running = CONTEXT.Process(target=_be, args=(theirs, listener, cwd, environment, arguments))
    running.start()
    theirs.close()
    with open(ours.fileno(), encoding="utf-8", errors="replace", closefd=False) as output:
        made = Process(running, output)
        try:
            yield made
        finally:
            running.kill()
            running.join(DEADLINE)
            made.reader.join(DEADLINE)
            ours.close()


class Process:
    """A process, and what it says."""

    def __init__(self, running, output):
        self._running, self._said, self._lines = running, [], queue.Queue()
        self.reader = threading.Thread(target=lambda: [self._lines.put(line) for line in output], daemon=True)
        self.reader.start()

    def hear(self, pattern):
        """Wait for a line, and return the match."""
        while not (found := re.search(pattern, "".join(self._said))):
            try:
                self._said.append(self._lines.get(timeout=3 * DEADLINE))  # imports take long on a busy machine
            except queue.Empty:
                raise AssertionError(f"no {pattern!r} in: {''.join(self._said)}") from None
        return found

    def finish(self):
        """Wait for its end, and return its exit code and all that it said."""
        self._running.join(3 * DEADLINE)
        self.reader.join(DEADLINE)
        while not self._lines.empty():
            self._said.append(self._lines.get())
        return self._running.exitcode, "".join(self._said)
