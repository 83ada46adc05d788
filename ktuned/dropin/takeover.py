"""``ktuned run`` in a program's interpreter: a plugin changes a framework's classes when the program imports them.

The interpreter loads the plugin's ``takeover`` module before the program starts, so that module must import next to
nothing. The drop-in itself is imported when the program imports the framework.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from ktuned.dropin.account import account

Change = Callable[[Any], None]
"""Called with a module, once it has been executed."""


def take_over(framework: str, module: str, adopt: Change) -> None:
    """Let a plugin adopt a framework's tuners, now or when the program imports their module.

    A framework that the plugin does not know is left alone: the program runs as it would without ktuned.
    """
    tool = framework.lower()

    def adopt_or_report(imported: Any) -> None:
        try:
            adopt(imported)
        except (ImportError, AttributeError) as error:
            version = getattr(sys.modules.get(tool), "__version__", "")
            reason = f"ktuned-{tool} does not know {framework} {version}: {error}"
            account.record_left_alone(f"{tool}.autotune", reason)

    when_imported(module, adopt_or_report)


def adopt_subclasses(base: type[Any], adopt: Callable[[type[Any]], None]) -> None:
    """Call ``adopt`` with all subclasses of a framework's class, the existing ones and those to come."""
    own_init_subclass = base.__dict__.get("__init_subclass__")

    def init_subclass(cls: type[Any], /, **more: Any) -> None:
        if own_init_subclass is not None:
            own_init_subclass.__func__(cls, **more)
        else:
            super(base, cls).__init_subclass__(**more)
        adopt(cls)

    base.__init_subclass__ = classmethod(init_subclass)  # type: ignore[assignment]
    pending = base.__subclasses__()
    while pending:
        subclass = pending.pop()
        adopt(subclass)
        pending += subclass.__subclasses__()


def explain_bypass(cls: type[Any], framework: str, method: str, calls: Collection[str]) -> str:
    """Return why calls never reach a drop-in: a subclass's own ``method`` calls none of ``calls``; else empty.

    Methods of the class that it calls are followed, too.
    """
    for base in cls.__mro__:
        if base.__module__.startswith(f"{framework.lower()}."):
            break
        if method in vars(base) and not _names_called(cls, vars(base)[method]) & {*calls}:
            return f"{base.__module__}.{base.__qualname__} has a {method} of its own, which never calls {framework}'s"
    return ""


def _names_called(cls: type[Any], method: Any) -> set[str]:
    """Return the names that a method uses, and those of its class's methods that it calls; of ``super().f`` also ``f``.

    A name that belongs to another object (``self.fn.run``) counts only if the method also calls its parent's.
    """
    names: set[str] = set()
    pending = [method]
    while pending:
        code = getattr(inspect.unwrap(pending.pop()), "__code__", None)
        found = set() if code is None else {*code.co_names} - names
        if code is not None and not {"super", *(base.__name__ for base in cls.__mro__)} & found:
            found.discard(code.co_name)
        names |= found
        pending += [vars(base)[name] for name in found for base in cls.__mro__[:-1] if callable(vars(base).get(name))]
    return names


def when_imported(module: str, change: Change) -> None:
    """Call ``change`` with a module: now if it is imported already, otherwise as soon as it is."""
    if module in sys.modules:
        change(sys.modules[module])
    else:
        sys.meta_path.insert(0, _Finder(module, change))


class _Finder(MetaPathFinder):
    """Finds one module as the interpreter would, but with a loader that changes it."""

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
