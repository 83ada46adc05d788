"""The interface between the fleet and machines: an executor starts workers, a worker answers requests.

The fleet decides which worker is needed when; an executor knows how to run it on its machine. That of this machine is
:class:`~ktuned.fleet.local_executor.LocalExecutor`; for other machines see :mod:`ktuned.fleet.remote`. An executor of
your own is right if it passes :func:`ktuned.testing.executors.check_executor`.
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
    """What a worker runs in: an interpreter, a working directory, variables, and the project that lies there.

    ``host`` is the name of another machine, empty for this one. There, the interpreter and the directory are the ones
    that the host's executor has in place of these.
    """

    python: str
    cwd: str
    env: tuple[tuple[str, str], ...] = ()
    project: str = ""
    host: str = ""

    def with_host_of(self, device: Device) -> Environment:
        """Return the same environment on a device's machine."""
        return self if device.host == self.host else msgspec.structs.replace(self, host=device.host)


class KernelCode(msgspec.Struct, frozen=True):
    """The Python that a kernel file runs: the file's path, and a digest of all Python that has a part in it."""

    file: str
    digest: str


DATA_CODE = KernelCode("", "")
"""Stands for all kernel files that are data and run no Python: a worker that has opened one serves them all."""


class Worker(ABC):
    """A running worker: one role in one environment. ``gone`` is set when it has ended, for whatever reason.

    The fleet keeps the rest: ``device`` is the name of the one on which the worker has its context, empty if none yet,
    and ``makes_context`` says that it makes one before it has a device. ``code`` is the kernel file that it has opened,
    ``holds_data`` whether it still has a problem's data, ``idle_until`` when it ends if nobody needs it.
    ``memory_bytes`` is what it used at the last look, ``settled_bytes`` what it needs without any growth, ``requests``
    how many it has had.
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
    async def send_request(
        self,
        request: requests.Request[R, I],
        deadlines: Mapping[str, float],
        *,
        on_item: Callable[[I], None] | None = None,
        on_computed: Callable[[], None] | None = None,
    ) -> tuple[R, Output]:
        """Send a request and wait for its reply; one at a time.

        A worker whose state is unknown afterwards is killed: after a deadline, and when the caller is cancelled.

        Args:
            request: What the worker is to do.
            deadlines: Seconds that each phase may take, by its name.
            on_item: Called with each item that comes before the reply.
            on_computed: Called when the worker says that the rest needs no processor.

        Returns:
            The reply, and what the worker's code printed meanwhile.

        Raises:
            WorkerDied: it ended meanwhile.
            DeadlineExpired: a phase took too long; the worker is killed.
            RequestFailed: it answered that it cannot; it lives on.
        """

    @abstractmethod
    def kill(self, why: str = "") -> None:
        """End the worker and all that it started, at once, wherever it runs.

        With ``why`` it ends for what it did: that is the error of the request under way. Without, a request under way
        fails as by a kill from outside.
        """

    @abstractmethod
    def measure_memory(self) -> None:
        """Set :attr:`memory_bytes` to what the worker and its children use now."""

    @abstractmethod
    def take_output(self) -> Output:
        """Return, and forget, what the worker's code has printed so far; also between two items of a request."""

    @abstractmethod
    def read_phase_durations(self) -> Mapping[str, float]:
        """Return the seconds that each phase of the last request took, by its name, for the log."""

    def settle_memory(self) -> None:
        """Take the memory that the worker uses now as what it needs; anything beyond that is growth."""
        self.measure_memory()
        self.settled_bytes = self.memory_bytes


class Executor(ABC):
    """Runs workers on one machine, or on several. None of them outlives the block of :meth:`run_workers`."""

    @abstractmethod
    def run_workers(self) -> AbstractAsyncContextManager[object]:
        """Let workers be started for the length of the block; on leaving, each is killed and has ended."""

    @abstractmethod
    async def start_worker(
        self, role: Role, environment: Environment, *, limit_bytes: int, deadline_s: float
    ) -> Worker:
        """Start a worker and wait until it takes requests.

        Args:
            role: What it will do.
            environment: What it runs in, and on which host.
            limit_bytes: Memory that the worker and its children may use together.
            deadline_s: Seconds until it must be ready.

        Raises:
            WorkerError: it cannot be started, or is not ready in time.
            HostLost: its machine is not there now.
        """

    @property
    @abstractmethod
    def workers(self) -> Iterable[Worker]:
        """All workers that have not ended."""

    @abstractmethod
    def leave_cores(self, lanes: int) -> None:
        """Leave cores to lanes: keep compilers and explorers off them, the running ones as well."""
