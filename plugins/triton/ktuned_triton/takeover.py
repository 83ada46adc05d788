"""``ktuned run``: the drop-in in the place of ``triton.autotune``, in a program that does not know of it.

The program's interpreter imports this before the program starts; Triton is replaced in when the program imports it.
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
from typing import Any

MODULE = "triton.runtime.autotuner"
"""The module that defines ``triton.autotune``; all others import it from there."""


def install(mode: str, summary: str) -> None:
    """Replace ``triton.autotune``, now or when it is imported, and write a summary into a directory at the end."""
    atexit.register(_write_summary, Path(summary))
    if MODULE in sys.modules:
        _replace(sys.modules[MODULE], mode)
    else:
        sys.meta_path.insert(0, _Finder(mode))


class _Finder(MetaPathFinder):
    """Finds Triton's module as the interpreter would, and has it changed after it was executed."""

    def __init__(self, mode: str) -> None:
        self._mode = mode

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's own spec, with a loader that changes it."""
        if fullname != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec, spec.loader, self._mode)
        return spec


class _Loader(Loader):
    """The module's own loader, and then the change."""

    def __init__(self, spec: ModuleSpec, inner: Loader, mode: str) -> None:
        self._spec = spec
        self._inner = inner
        self._mode = mode

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Make the module as its own loader does."""
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module, put the drop-in into it, and leave no trace of this loader."""
        module.__loader__ = self._spec.loader = self._inner
        self._inner.exec_module(module)
        _replace(module, self._mode)


def _replace(module: Any, mode: str) -> None:
    from ktuned_triton import autotuner

    def autotune(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        return autotuner.autotune(*args, **{"mode": mode, **kwargs})

    autotune.__doc__ = module.autotune.__doc__
    module.autotune = autotune


def _write_summary(directory: Path) -> None:
    """Write what became of this process's functions; a process that had none writes nothing."""
    autotuner = sys.modules.get("ktuned_triton.autotuner")
    if autotuner is None or not (autotuner.taken_over or autotuner.left_alone):
        return
    from ktuned_triton.tunings import all_asked

    content = {
        "command": sys.argv,
        "taken_over": sorted(autotuner.taken_over),
        "left_alone": autotuner.left_alone,
        "keys": all_asked(),
    }
    # The directory is gone when the command was killed.
    if directory.is_dir():
        (directory / f"{os.getpid()}.json").write_text(json.dumps(content))
