"""stoppable: the stop button for AI agents."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stoppable._api import *  # noqa: F403 - all of it
    from stoppable._api import __all__ as __all__
    from stoppable._engine.isolation.host import AgentProcessDied
    from stoppable.records import BulkStop, Event, EventType, Filter, RunRecord, RunSummary
    from stoppable.supervisor import Supervisor

    __all__ += ["AgentProcessDied", "BulkStop", "Event", "EventType", "Filter", "RunRecord", "RunSummary", "Supervisor"]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Import the library when one of its names is first used; a command such as ``stoppable ls`` needs none of them.

    Afterwards nearly all names are here, and this is called once for each of the others.
    """
    if name.startswith("_") and name != "__all__":  # what Python looks for, and our own submodules
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    api = importlib.import_module(f"{__name__}._api")
    globals().update({public: vars(api)[public] for public in api.__all__}, __all__=sorted([*api.__all__, *_LATER]))
    if name in _LATER:
        globals()[name] = getattr(importlib.import_module(_LATER[name]), name)
    if name not in globals():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    return globals()[name]


_LATER = {
    "AgentProcessDied": "stoppable._engine.isolation.host",
    "BulkStop": "stoppable.records",
    "Event": "stoppable.records",
    "EventType": "stoppable.records",
    "Filter": "stoppable.records",
    "RunRecord": "stoppable.records",
    "RunSummary": "stoppable.records",
    "Supervisor": "stoppable.supervisor",
}
"""The modules of the names that are imported one by one: they take as long as all others, and an agent that is run
without a supervisor needs none of them."""
_SUBMODULES = frozenset(
    {"adapters", "cli", "client", "demo", "errors", "records", "server", "stores", "supervisor", "sync", "testing"}
)


def __dir__() -> list[str]:
    return sorted({*globals(), *importlib.import_module(f"{__name__}._api").__all__, *_LATER})
