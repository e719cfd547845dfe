"""stoppable: the stop button for AI agents."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stoppable._api import *  # noqa: F403 - all of it
    from stoppable._api import __all__ as __all__

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Import the library when one of its names is first used; a command such as ``stoppable ls`` needs none of them.

    Afterwards all names are here, and this is no longer called.
    """
    if name.startswith("_") and name != "__all__":  # what Python looks for, and our own submodules
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    api = importlib.import_module(f"{__name__}._api")
    globals().update({public: getattr(api, public) for public in api.__all__}, __all__=api.__all__)
    if name not in globals():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    return globals()[name]


_SUBMODULES = frozenset(
    {"adapters", "cli", "client", "demo", "errors", "records", "server", "stores", "supervisor", "sync", "testing"}
)


def __dir__() -> list[str]:
    return sorted({*globals(), *importlib.import_module(f"{__name__}._api").__all__})
