"""``ktuned run`` in a program's interpreter: a plugin changes a framework's classes when the program imports them.

The hook of ``ktuned run`` (``ktuned.cli.run_hook``) calls ``adopt`` of the plugin's module ``takeover`` then.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from ktuned.dropin.account import account


@contextlib.contextmanager
def adopt_framework(framework: str, summary: str) -> Iterator[None]:
    """Let a plugin adopt a framework's tuners in this process; ``summary`` is the directory of the run's account.

    A framework that the plugin does not know is left alone: the program runs as it would without ktuned.
    """
    account.directory = Path(summary)
    tool = framework.lower()
    try:
        yield
    except (ImportError, AttributeError) as error:
        version = getattr(sys.modules.get(tool), "__version__", "")
        reason = f"ktuned-{tool} does not know {framework} {version}: {error}"
        account.record_left_alone(f"{tool}.autotune", reason)


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
