"""The face that the fleet shows to machines: an executor starts workers, a worker exchanges requests for replies.

The fleet decides which worker is needed when; an executor knows how to run one where it is. This machine's is
:class:`~ktuned.fleet.local_executor.LocalExecutor`; for others see :mod:`ktuned.fleet.remote`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from time import monotonic
from typing import TypeVar

import anyio
import msgspec

from ktuned.fleet.failures import Output
from ktuned.ipc import requests
from ktuned.model import Device, Role, read_device_kind

R = TypeVar("R")
I = TypeVar("I")  # noqa: E741 - an item


class Environment(msgspec.Struct, frozen=True):
    """The code that a worker runs: interpreter, directory, additions to the environment, the project in it.

    On another ``host`` than this machine, interpreter and directory are those that stand for them there.
    """

    python: str
    cwd: str
    env: tuple[tuple[str, str], ...] = ()
    project: str = ""
    host: str = ""

    def beside(self, device: Device) -> Environment:
        """Return the environment on the machine of a device."""
        return self if device.host == self.host else msgspec.structs.replace(self, host=device.host)


class KernelCode(msgspec.Struct, frozen=True):
    """The Python of a kernel file: the file, and a digest of all Python that has a part in it."""

    file: str
    digest: str


DATA_CODE = KernelCode("", "")
"""Stands for the kernel files that run nothing of the user's: a worker that has opened one serves all of them."""


class Worker(ABC):
    """A running worker: one role in one environment; ``gone`` is set when it has ended, however it did.

    ``device`` is the one on which it has worked and has its context, ``makes_context`` whether it makes one before it
    has a device, ``code`` the kernel file that it has opened there, ``holds_data`` whether it still has a problem's
    data, and it idles until ``idle_until`` at most: the lane machine keeps these. ``memory_bytes`` is
    what it used when it was last looked at, ``settled_bytes`` what it needs, ``requests`` how many it has had.
    """

    def __init__(self, role: Role, environment: Environment, pid: int) -> None:
        self.role = role
        self.environment = environment
        self.pid = pid
        self.started = monotonic()
        self.requests = 0
        self.device = ""
        self.makes_context = False
        self.code: KernelCode | None = None
        self.holds_data = False
        self.idle_until = 0.0
        self.memory_bytes = 0
        self.settled_bytes = 0
        self.gone = anyio.Event()

    @property
    @abstractmethod
    def is_alive(self) -> bool:
        """True until it has ended."""

    @property
    def has_context(self) -> bool:
        """True if it has a context on a GPU, or makes one."""
        return self.makes_context or read_device_kind(self.device) == "cuda"

    @abstractmethod
    async def exchange(
        self,
        request: requests.Request[R, I],
        deadlines: Mapping[str, float],
        *,
        on_item: Callable[[I], None] | None = None,
        on_computed: Callable[[], None] | None = None,
    ) -> tuple[R, Output]:
        """Send a request; return its reply, and what the worker's code printed meanwhile.

        ``deadlines`` gives each phase's seconds. ``on_computed`` is called where the worker says that what is left
        needs no processor. A worker that cannot be relied on any more is killed: one whose deadline passed, or whose
        caller was cancelled.

        Raises:
            WorkerDied: it ended meanwhile.
            DeadlineExpired: a phase took too long; the worker is killed.
            RequestFailed: it answered that it cannot; it lives on.
        """

    @abstractmethod
    def kill(self) -> None:
        """End the worker and all that it started, at once, wherever it runs."""

    @abstractmethod
    def stop(self, why: str) -> None:
        """Kill the worker for what it does; ``why`` is the error of the request under way."""

    @abstractmethod
    def measure_memory(self) -> None:
        """Set :attr:`memory_bytes` to what the worker and its children use now."""

    @abstractmethod
    def output(self) -> Output:
        """Return, and forget, what the worker's code has printed so far: between two items of a request."""

    @abstractmethod
    def timeline(self) -> Mapping[str, float]:
        """Return the seconds that each phase of the last request took, for the log."""

    def settle(self) -> None:
        """Take what it uses now as what it needs; anything beyond that is growth."""
        self.measure_memory()
        self.settled_bytes = self.memory_bytes


class Executor(ABC):
    """Runs workers on one machine, or on several; none outlives :meth:`running`."""

    @abstractmethod
    def running(self) -> AbstractAsyncContextManager[object]:
        """Hold what workers need; on leaving, each is killed and has ended."""

    @abstractmethod
    async def start(self, role: Role, environment: Environment, *, limit_bytes: int, deadline_s: float) -> Worker:
        """Start a worker and wait until it takes requests; it may use ``limit_bytes`` of memory.

        Raises:
            WorkerError: it cannot be started, or is not ready within ``deadline_s``.
            HostLost: its machine is not there now.
        """

    @property
    @abstractmethod
    def workers(self) -> Iterable[Worker]:
        """All workers that have not ended."""

    @abstractmethod
    def leave_cores(self, lanes: int) -> None:
        """Keep compilers and explorers, those that run too, off so many cores, as far as there are cores."""
