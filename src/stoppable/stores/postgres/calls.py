"""The calls of the Store protocol on Postgres, gathered from the modules that make them."""

from stoppable.stores.postgres.events import append, read
from stoppable.stores.postgres.holds import audit, holds, place_hold, release
from stoppable.stores.postgres.queries import counts, get, query, tree
from stoppable.stores.postgres.retention import purge
from stoppable.stores.postgres.runs import acknowledge, finish, register
from stoppable.stores.postgres.stops import request_stop
from stoppable.stores.postgres.tails import in_flight, tail

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
