"""``ktuned run`` in a program's interpreter: a plugin changes a framework's modules when the program imports them.

The interpreter loads the plugin before the program starts, but the framework is not imported before the program does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

Change = Callable[[Any], None]
"""Called with a module, once it has been executed."""


def when_imported(module: str, change: Change) -> None:
    """Call ``change`` with a module: now if it is imported already, otherwise as soon as it is."""
    if module in sys.modules:
        change(sys.modules[module])
    else:
        sys.meta_path.insert(0, _Finder(module, change))


class _Finder(MetaPathFinder):
    """Finds one module as the interpreter would, with a loader that changes it."""

    def __init__(self, module: str, change: Change) -> None:
        self._module = module
        self._change = change

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's own spec, with a loader that changes it."""
        if fullname != self._module:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec, spec.loader, self._change)
        return spec


class _Loader(Loader):
    """The module's own loader, followed by the change."""

    def __init__(self, spec: ModuleSpec, inner: Loader, change: Change) -> None:
        self._spec = spec
        self._inner = inner
        self._change = change

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Make the module as its own loader does."""
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module, change it, and leave no trace of this loader."""
        module.__loader__ = self._spec.loader = self._inner
        self._inner.exec_module(module)
        self._change(module)
