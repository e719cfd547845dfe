"""Replaces functions of other modules, and restores them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:  # importing it takes as long as a third of stoppable
    import importlib.abc
    import importlib.machinery

_installed: dict[tuple[object, str], tuple[Any, Any]] = {}
"""The replacement and the original (None if inherited), by the owner and the name of the attribute."""
_on = False


def is_on() -> bool:
    """Return whether ``instrument()`` is active; a replacement may stay in place if other code has wrapped it."""
    return _on


def switch(*, on: bool) -> None:
    """Switch ``instrument()`` on or off."""
    global _on
    _on = on


def put(owner: object, name: str, make: Callable[[Any], Any]) -> None:
    """Replace an attribute by the function that ``make`` returns for the current one."""
    if (owner, name) not in _installed or name not in vars(owner):  # other code may have removed it
        # Use getattr, as callers do: a wrapper of a tracing library must see the class that it is called on.
        ours = make(getattr(owner, name))
        _installed[owner, name] = ours, vars(owner).get(name)
        setattr(owner, name, ours)


def take_away() -> None:
    """Restore all attributes; replacements that other code has wrapped stay in place and do nothing."""
    for (owner, name), (ours, original) in list(_installed.items()):
        current = vars(owner).get(name)
        if current is ours and original is not None:
            setattr(owner, name, original)
        elif current is ours:
            delattr(owner, name)
        if current is ours or current is None:  # None: other code has removed it
            del _installed[owner, name]


class _Finder:
    """An import hook that calls a function after a module was imported; it finds no modules itself."""

    def __init__(self) -> None:
        self.wanted: dict[str, Callable[[ModuleType], None]] = {}
        self._searches = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec from the other finders, with a loader that calls the function afterwards."""
        then = self.wanted.get(fullname)
        if then is None or getattr(self._searches, "is_on", False):
            return None
        self._searches.is_on = True  # another hook of this kind asks all finders too, and so this one again
        try:
            spec = self._search(fullname, path, target)
        finally:
            self._searches.is_on = False
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = cast("importlib.abc.Loader", _Loader(spec.loader, then))
        return spec

    def _search(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> importlib.machinery.ModuleSpec | None:
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)  # the import system skips it too
            spec: importlib.machinery.ModuleSpec | None = None if find is None else find(fullname, path, target)
            if spec is not None:
                return spec
        return None


class _Loader:
    """Loads one module with its real loader, which it then is the loader of, and calls a function.

    The real loader is not changed: zipimport, pytest and others load many modules with one loader object.
    """

    def __init__(self, loader: Any, then: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._then = then

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """Create the module as the real loader does."""
        create = getattr(self._loader, "create_module", None)
        return None if create is None else create(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module as the real loader does, then call the function."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._then(module)

    def __getattr__(self, name: str) -> Any:
        # What else loaders can do, for code that asks for the spec without importing.
        return getattr(self._loader, name)


_finder = _Finder()


def when_imported(name: str, then: Callable[[ModuleType], None]) -> None:
    """Call a function with a module: now if it is already imported, otherwise after its import."""
    module = sys.modules.get(name)
    if module is not None:
        then(module)
        return
    _finder.wanted[name] = then
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def wait_no_longer() -> None:
    """Remove all import hooks."""
    _finder.wanted.clear()
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
