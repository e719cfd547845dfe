"""Whether a process is alive: one that has ended is not, even while its parent has not looked at its exit code."""

from pathlib import Path


def state(pid):
    """Return the letter by which the system names the state of a process, or None if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None


def is_alive(pid):
    """Return whether a process is neither gone nor a zombie."""
    return state(pid) not in {None, "Z", "X"}
