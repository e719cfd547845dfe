"""The calls of the Store protocol on a SQLite file, gathered from the modules that make them."""

from stoppable.stores.sqlite.events import append, read
from stoppable.stores.sqlite.holds import audit, holds, place_hold, release
from stoppable.stores.sqlite.queries import counts, get, query, tree
from stoppable.stores.sqlite.retention import purge
from stoppable.stores.sqlite.runs import acknowledge, finish, register
from stoppable.stores.sqlite.stops import request_stop
from stoppable.stores.sqlite.tails import in_flight, tail

__all__ = [
    "acknowledge",
    "append",
    "audit",
    "counts",
    "finish",
    "get",
    "holds",
    "in_flight",
    "place_hold",
    "purge",
    "query",
    "read",
    "register",
    "release",
    "request_stop",
    "tail",
    "tree",
]
