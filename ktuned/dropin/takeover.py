"""``ktuned run`` in a program's interpreter: modules that are changed when they are imported, and a summary at the end.

The interpreter imports a plugin's part of this before the program starts; what it replaces is not imported for it.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Final

Change = Callable[[Any], None]
"""Called with a module, once it has been executed."""

left_alone: Final[dict[str, str]] = {}
"""Functions of this process that ktuned does not tune, with the reason."""

taken_over: Final[set[str]] = set()
"""Functions of this process whose configs come from the daemon."""


def when_imported(module: str, change: Change) -> None:
    """Call ``change`` with a module: now if it is imported, else when it will be."""
    if module in sys.modules:
        change(sys.modules[module])
    else:
        sys.meta_path.insert(0, _Finder(module, change))


def summarise_at_exit(directory: Path) -> None:
    """Have a summary of this process written into a directory at its end; one without functions writes nothing."""
    atexit.register(_write_summary, directory)


class _Finder(MetaPathFinder):
    """Finds one module as the interpreter would, and has it changed after it was executed."""

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
    """The module's own loader, and then the change."""

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


def _write_summary(directory: Path) -> None:
    # The directory is gone when the command was killed.
    if not (taken_over or left_alone) or not directory.is_dir():
        return
    from ktuned.dropin.tunings import all_asked

    content = {
        "command": sys.argv,
        "taken_over": sorted(taken_over),
        "left_alone": left_alone,
        "keys": all_asked(),
    }
    (directory / f"{os.getpid()}.json").write_text(json.dumps(content))
