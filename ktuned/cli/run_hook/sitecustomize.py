"""Waits for a framework, to adopt its tuners. Each interpreter of ``ktuned run`` imports this before its program.

Most of these interpreters never import a framework (data loaders, compile workers, test runners). So nothing of ktuned,
and next to nothing of the standard library, is imported before a framework's module is.

This module hides a user's own ``sitecustomize`` that comes later on ``PYTHONPATH``, so it imports that afterwards.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PLUGINS = {
    "triton.runtime.autotuner": "ktuned_triton",
    "tilelang.autotuner.tuner": "ktuned_tilelang",
    "torch._inductor.compile_fx": "ktuned_inductor",
}
"""The plugin with the drop-in for each framework, by the module that defines the framework's tuners."""


ANNOUNCED = {"tilelang": "ktuned_tilelang"}
"""The plugin that tells the daemon of a framework's import, by the package whose import begins it."""


class _Finder:
    """Finds a framework's module as the interpreter would, but with a loader that has a plugin adopt its tuners."""

    def __init__(self, plugins: dict[str, str]) -> None:
        self._plugins = plugins

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """Return the module's own spec, with the other loader."""
        if ANNOUNCED.get(name) in self._plugins.values():
            _find_takeover(ANNOUNCED[name]).announce(os.environ.get("KTUNED_RUN_WINNERS", ""))
        if name not in self._plugins:
            return None
        spec = _find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._plugins.pop(name))
        return spec


class _Loader:
    """The module's own loader, followed by the adoption."""

    def __init__(self, inner: Any, plugin: str) -> None:
        self._inner = inner
        self._plugin = plugin

    def create_module(self, spec: Any) -> Any:
        """Make the module as its own loader does."""
        return self._inner.create_module(spec)

    def exec_module(self, module: Any) -> None:
        """Execute the module, leave no trace of this loader, and adopt the tuners."""
        module.__loader__ = module.__spec__.loader = self._inner
        self._inner.exec_module(module)
        _adopt_tuners(self._plugin, module)


def _find_spec(name: str, path: Any = None, target: Any = None) -> Any:
    finders = (finder for finder in sys.meta_path if not isinstance(finder, _Finder))
    specs = (finder.find_spec(name, path, target) for finder in finders if hasattr(finder, "find_spec"))
    return next((spec for spec in specs if spec is not None), None)


def _find_takeover(plugin: str) -> Any:
    # By name, because plugins are optional.
    return __import__(f"{plugin}.takeover", fromlist=["adopt"])


def _adopt_tuners(plugin: str, module: Any) -> None:
    _find_takeover(plugin).adopt(
        module,
        os.environ["KTUNED_RUN_MODE"],
        os.environ.get("KTUNED_RUN_NUMERICS", "tolerance"),
        os.environ.get("KTUNED_RUN_WINNERS", ""),
        os.environ["KTUNED_RUN_SUMMARY"],
    )


def _install() -> None:
    # Not every interpreter of a program has plugins. The summary says so if none has.
    plugins = {module: plugin for module, plugin in PLUGINS.items() if _find_spec(plugin) is not None}
    if not plugins:
        return
    try:
        with open(os.path.join(os.environ["KTUNED_RUN_SUMMARY"], f"{os.getpid()}.jsonl"), "a") as file:
            file.writelines(f'["drop_in", "{plugin}"]\n' for plugin in plugins.values())
    except OSError:
        # The directory is gone if the command was killed.
        pass
    for module in [module for module in plugins if module in sys.modules]:
        _adopt_tuners(plugins.pop(module), sys.modules[module])
    sys.meta_path.insert(0, _Finder(plugins))


def _import_shadowed_sitecustomize() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    ours = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        # The user has none. Restore this module: the interpreter looks it up in sys.modules after importing it.
        sys.modules["sitecustomize"] = ours


if "KTUNED_RUN_MODE" in os.environ and "KTUNED_RUN_SUMMARY" in os.environ:
    _install()
_import_shadowed_sitecustomize()
