"""How a connection of the Postgres store would take its statements if there were no locks, for a mutant of that name.

What it shows must not depend on luck: of two transactions at the same time neither is kept before both have looked.
"""

import re
import threading

import psycopg

_LOCKS = re.compile(r" FOR (NO KEY UPDATE|KEY SHARE|SHARE|UPDATE)( OF runs)?")
_ADVISORY = re.compile(r"pg_advisory_xact_lock(_shared)?")
_meeting = threading.Barrier(2)  # both stores of a race are in one process


def execute(self, query, *args, **kwargs):
    """Perform a statement without its locks."""
    query = query if isinstance(query, str) else query.as_string(self)
    if query == "BEGIN":
        self.has_written = False
    elif query.startswith(("INSERT", "UPDATE", "DELETE")):
        self.has_written = True
    elif query == "COMMIT" and self.has_written:
        psycopg.Connection.execute(self, "SELECT 1").fetchall()  # all of it was sent and done
        try:
            _meeting.wait(0.2)
        except threading.BrokenBarrierError:  # nobody else writes
            _meeting.reset()
    return psycopg.Connection.execute(self, _ADVISORY.sub("abs", _LOCKS.sub("", query)), *args, **kwargs)
