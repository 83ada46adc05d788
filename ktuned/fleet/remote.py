"""The seam for machines beyond this one: an executor that a plugin brings.

A *host* is another machine on which workers can be started. Its name leads the names of its devices
(``rack7/cuda:0``) and stands in the environments of its workers; nothing else in ktuned tells it from this machine. The
plugin's executor says which hosts there are, starts workers on them, and has each worker find the files that its
requests name: a project, artifacts, captured inputs. How it does so is its own affair.

Whatever goes wrong between the machines is one error, :class:`~ktuned.fleet.failures.HostLost`: a worker ended, or was
not started, for a reason that says nothing about its work. The job does the work again, and a lane waits for its host
or another lane stands in.

A plugin's distribution names its executor under the entry-point group ``ktuned.executors``. The entry's name is that of
the table of ``config.toml`` that holds its settings; the daemon imports the plugin when that table is there, and not
before. So the plugin must be light: libraries that may block or crash belong in a process of their own, which
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

    ``on_up(host, cores)``: the host takes workers, which may use so many cores. ``on_lost(host)``: it no longer takes
    any. ``on_changed(host, reason)``: its compilers or packages were replaced.
    """

    on_up: Callable[[str, int], None]
    on_lost: Callable[[str], None]
    on_changed: Callable[[str, str], None]


class Surroundings(msgspec.Struct, frozen=True):
    """What an executor may use of its daemon.

    ``artifacts`` and ``captures`` are the directories of sealed artifacts and of captured inputs. A process of the
    plugin may run in ``state``, with the environment ``base_env``. It must have ``mark`` (``NAME=value``) in its
    environment, so that it does not outlive the daemon, and its id among ``kept``, or the daemon kills it as an orphan.
    """

    artifacts: Path
    captures: Path
    state: Path
    base_env: Mapping[str, str]
    mark: str
    kept: MutableSet[int]


class RemoteExecutor(Executor):
    """An executor on other machines. It is in touch with them for the length of :meth:`run_workers`.

    ``settings`` is the type of its table in ``config.toml``, a struct whose fields have defaults.
    """

    settings: ClassVar[type[msgspec.Struct]]

    @classmethod
    def check_settings(cls, settings: Any) -> str:
        """Return what is wrong with settings of the right types, beginning with the field's name; empty if nothing."""
        return ""

    @abstractmethod
    def __init__(self, surroundings: Surroundings, events: HostEvents) -> None:
        """Prepare; nothing may run before :meth:`run_workers`."""

    @abstractmethod
    def apply_settings(self, settings: Any, *, limits_are_given: bool) -> None:
        """Follow new settings; None means that the table is gone, and all hosts are left.

        Workers get the memory limits of :meth:`start_worker` if ``limits_are_given``, else what the executor grants on
        their host.
        """

    @abstractmethod
    async def await_hosts(self) -> None:
        """Wait until it is known which hosts there are; give up after a while."""

    @abstractmethod
    def describe_hosts(self) -> ExecutorInfo | None:
        """Return the executor and its hosts for a status; None without settings."""

    @property
    @abstractmethod
    def notices(self) -> list[str]:
        """Why hosts cannot be used, one line each."""

    def leave_cores(self, lanes: int) -> None:
        """Do nothing: lanes are counted on this machine alone."""


def list_executor_names() -> list[str]:
    """Return the names of the installed executors, which are the names of their tables."""
    from importlib.metadata import entry_points

    return [entry.name for entry in entry_points(group=EXECUTORS)]


def load_executor(name: str) -> type[RemoteExecutor]:
    """Return the executor of a name."""
    from importlib.metadata import entry_points

    (entry,) = entry_points(group=EXECUTORS, name=name)
    found: type[RemoteExecutor] = entry.load()
    return found
