"""The interface to other machines: an executor that a plugin provides.

A *host* is another machine on which workers can be started. Its name begins the names of its devices
(``rack7/cuda:0``) and is in the environments of its workers; the rest of ktuned does not distinguish it from this
machine. The plugin's executor reports which hosts there are, starts workers on them, and makes sure that each worker
finds the files that its requests name: a project and artifacts. How it does so is up to the plugin.

Every failure between the machines is one error, :class:`~ktuned.fleet.failures.HostLost`: a worker ended, or was not
started, for a reason that says nothing about its work. The job does the work again, and a lane waits for its host, or
another lane stands in.

A plugin's distribution names its executor under the entry-point group ``ktuned.executors``. The entry has the same name
as the table of ``config.toml`` with the executor's settings. The daemon imports the plugin once that table is there. So
the plugin must be light: libraries that may block or crash belong in a process of their own, which
:class:`~ktuned.fleet.Bridge` runs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, MutableSet
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from ktuned.fleet.executor import Executor
from ktuned.protocol import ExecutorInfo

EXECUTORS = "ktuned.executors"
"""The group of entry points."""


class HostEvents(msgspec.Struct, frozen=True):
    """The calls by which an executor reports its hosts.

    Attributes:
        on_up: Called as ``on_up(host, cores)`` when workers can be started on a host; they may use so many cores.
        on_lost: Called as ``on_lost(host)`` when no workers can be started there any more.
        on_changed: Called as ``on_changed(host, reason)`` when the host's compilers or packages were replaced.
    """

    on_up: Callable[[str, int], None]
    on_lost: Callable[[str], None]
    on_changed: Callable[[str, str], None]


class Surroundings(msgspec.Struct, frozen=True):
    """The parts of its daemon that an executor may use.

    Attributes:
        artifacts: The directory of sealed artifacts.
        state: The directory that a process of the plugin may run in.
        base_env: The environment that a process of the plugin may run with.
        mark: ``NAME=value``, which every process of the plugin must have in its environment, so that it does not
            outlive the daemon.
        known_children: Every process that the plugin starts must add its id here, or the daemon kills it as an orphan.
    """

    artifacts: Path
    state: Path
    base_env: Mapping[str, str]
    mark: str
    known_children: MutableSet[int]


class RemoteExecutor(Executor):
    """An executor on other machines. It communicates with them only inside the block of :meth:`run_workers`.

    Attributes:
        settings: The type of its table in ``config.toml``, a struct whose fields have defaults.
    """

    settings: ClassVar[type[msgspec.Struct]]

    @classmethod
    def check_settings(cls, settings: Any) -> str:
        """Check settings whose types are right; return what is wrong, the field's name first, or an empty text."""
        return ""

    @abstractmethod
    def __init__(self, surroundings: Surroundings, events: HostEvents) -> None:
        """Prepare. Nothing may be started before :meth:`run_workers`."""

    @abstractmethod
    def apply_settings(self, settings: Any, *, has_memory_limits: bool) -> None:
        """Apply new settings; None means that the table was removed, and all hosts are to be left.

        If ``has_memory_limits``, workers get the memory limits passed to :meth:`start_worker`. Otherwise the executor
        chooses limits for their host.
        """

    @abstractmethod
    async def await_hosts(self) -> None:
        """Wait until the executor knows its hosts; give up after a while."""

    @abstractmethod
    def describe_hosts(self) -> ExecutorInfo | None:
        """Return a description of the executor and its hosts for a status; None without settings."""

    @property
    @abstractmethod
    def notices(self) -> list[str]:
        """Reasons why hosts cannot be used, one line each."""

    def leave_cores(self, lanes: int) -> None:
        """Do nothing, because only the lanes of this machine are counted."""


def list_executor_names() -> list[str]:
    """Return the names of the installed executors, which are also the names of their tables."""
    from importlib.metadata import entry_points

    return [entry.name for entry in entry_points(group=EXECUTORS)]


def load_executor(name: str) -> type[RemoteExecutor]:
    """Import and return the executor with a name."""
    from importlib.metadata import entry_points

    (entry,) = entry_points(group=EXECUTORS, name=name)
    found: type[RemoteExecutor] = entry.load()
    return found
