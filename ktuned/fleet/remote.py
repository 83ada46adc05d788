"""The seam for machines beyond this one: an executor that a plugin brings.

A *host* is another machine on which workers can be started. Its name leads the names of its devices
(``rack7/cuda:0``) and stands in the environments of its workers; nothing else in ktuned tells it from this machine. The
plugin's executor says which hosts there are, starts workers on them, and has each worker find the files that its
requests name: a project, artifacts, captured inputs. How it does so is its own affair.

What can go wrong there has one error, :class:`~ktuned.fleet.failures.HostLost`: a worker ended, or was not started,
for a reason that says nothing about its work. The work goes back to its job, and a lane waits or another one stands in.

A plugin's distribution names its executor under the entry-point group ``ktuned.executors``. The entry's name is that of
the table of ``config.toml`` that holds its settings; the plugin is imported when that table is there, and not before.
It is imported by the daemon, so it must be light: libraries that may block or crash belong into a process of its own,
for which :class:`~ktuned.fleet.Bridge` is made.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, MutableSet
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from ktuned.fleet.executor import Executor

EXECUTORS = "ktuned.executors"
"""The group of entry points."""


class HostEvents(msgspec.Struct, frozen=True):
    """Where an executor reports its hosts.

    ``on_up`` gets the name of a host that takes workers, and the cores that they may use; ``on_lost`` one that takes
    none any more; ``on_changed`` one whose compilers or packages were replaced, and what changed.
    """

    on_up: Callable[[str, int], None]
    on_lost: Callable[[str], None]
    on_changed: Callable[[str, str], None]


class Surroundings(msgspec.Struct, frozen=True):
    """What an executor may use of the daemon that it works for.

    ``artifacts`` and ``captures`` are the daemon's directories of sealed artifacts and of captured inputs; ``state`` is
    where a process of the plugin may run, with the environment ``base_env``. ``mark`` (``NAME=value``) must be in the
    environment of each process that is not to outlive the daemon; children that it may not take for orphans are
    ``kept``.
    """

    artifacts: Path
    captures: Path
    state: Path
    base_env: Mapping[str, str]
    mark: str
    kept: MutableSet[int]


class RemoteExecutor(Executor):
    """An executor on other machines; :meth:`running` keeps it in touch with them.

    ``settings`` is the type of its table in ``config.toml``, a struct whose fields have defaults.
    """

    settings: ClassVar[type[msgspec.Struct]]

    @classmethod
    def check_settings(cls, settings: Any) -> str:
        """Return what is wrong with settings whose types are right, beginning with the field's name; else nothing."""
        return ""

    @abstractmethod
    def __init__(self, surroundings: Surroundings, events: HostEvents) -> None:
        """Be ready; nothing runs before :meth:`running`."""

    @abstractmethod
    def follow(self, settings: Any, *, limits_are_given: bool) -> None:
        """Follow settings from now on; nothing where there are none any more, and all hosts are left.

        Workers get the limits of :meth:`start` if ``limits_are_given``, else what the executor grants on their host.
        """

    @abstractmethod
    async def settled(self) -> None:
        """Wait, not longer than a while, until it is known which hosts there are."""

    @abstractmethod
    def describe(self) -> Mapping[str, Any]:
        """Return it for a status: ``name``, ``version`` (empty while it reaches no hosts), ``mend``, and ``hosts``,
        each with ``name state cpus gpus interpreter python ktuned reason mend``.
        """

    @property
    @abstractmethod
    def notices(self) -> list[str]:
        """What keeps hosts from being used, one line each."""

    def leave_cores(self, lanes: int) -> None:
        """Leave compilers where they are: lanes are counted on this machine alone."""


def executor_names() -> list[str]:
    """Return the names of the installed executors, those of their tables."""
    from importlib.metadata import entry_points

    return [entry.name for entry in entry_points(group=EXECUTORS)]


def load_executor(name: str) -> type[RemoteExecutor]:
    """Return the executor of a name."""
    from importlib.metadata import entry_points

    (entry,) = entry_points(group=EXECUTORS, name=name)
    found: type[RemoteExecutor] = entry.load()
    return found
