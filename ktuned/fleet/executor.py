"""The interface between the fleet and machines: an executor starts workers, a worker answers requests.

The fleet decides which worker is needed and when; an executor knows how to run it on a machine. The executor for this
machine is :class:`~ktuned.fleet.local_executor.LocalExecutor`, that for others
:class:`~ktuned.fleet.cluster.ClusterExecutor`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from time import monotonic
from typing import Self, TypeVar

import anyio
import msgspec

from ktuned.fleet.failures import Output
from ktuned.ipc import requests
from ktuned.model import Device, FrozenStruct, Role, read_device_kind

R = TypeVar("R")
I = TypeVar("I")  # noqa: E741 - an item


class Environment(FrozenStruct):
    """What a worker runs in.

    Attributes:
        python: The path of the interpreter. On another host, its executor uses its own interpreter instead.
        cwd: The working directory. On another host, its executor uses its own directory instead.
        env: Environment variables that are added to those of all workers.
        project: The name of the project that lies in ``cwd``.
        host: The name of another machine; empty for this one.
    """

    python: str
    cwd: str
    env: tuple[tuple[str, str], ...] = ()
    project: str = ""
    host: str = ""

    def with_host_of(self, device: Device) -> Environment:
        """Return the same environment on a device's machine."""
        return self if device.host == self.host else msgspec.structs.replace(self, host=device.host)


class KernelCode(FrozenStruct):
    """The Python that a kernel file runs: the file's path, and a digest of all Python code that takes part."""

    file: str
    digest: str


DATA_CODE = KernelCode("", "")
"""The code of every kernel file that is data and runs no Python: a worker that has opened one of them can open any."""


class Worker(ABC):
    """A running worker: one role in one environment.

    Attributes:
        role: The worker's role.
        environment: What the worker runs in.
        pid: Its process id.
        started: When it was started, in seconds of the monotonic clock.
        requests: How many requests it has had.
        memory_bytes: The memory that it used when it was last measured.
        gone: Set when the worker has ended, for whatever reason.
        device: The name of the device on which the worker has its context, empty if none yet; kept by the fleet, like
            the following ones.
        makes_context: Whether it makes a context before it has a device.
        code: The kernel file that it has opened.
        holds_data: Whether it still has a problem's data.
        idle_until: When it ends if nobody needs it.
        settled_bytes: The memory that it needs without any growth.
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
        """Send a request and wait for its reply. A worker takes one request at a time.

        After a missed deadline, or if the caller is cancelled, the worker's state is unknown, and it is killed.

        Args:
            request: What the worker is to do.
            deadlines: Seconds that each phase may take, by its name.
            on_item: Called with each item that comes before the reply.
            on_computed: Called when the worker reports that the rest of the request needs no processor.

        Returns:
            The reply, and what the worker's code printed meanwhile.

        Raises:
            WorkerDied: the worker ended during the request.
            DeadlineExpired: a phase took too long; the worker is killed.
            RequestFailed: the worker could not do it and said so; it stays alive.
        """

    @abstractmethod
    def kill(self, why: str = "") -> None:
        """End the worker and everything that it started, at once, wherever it runs.

        If the worker is killed for something that it did, ``why`` says so, and is the error of a request under way.
        Without ``why``, a request under way fails as if the worker had been killed from outside.
        """

    @property
    def can_pause(self) -> bool:
        """Whether it can be paused; a worker on another host cannot."""
        return False

    @property
    def paused_s(self) -> float:
        """For how many seconds it was paused in the present request, or in the last one."""
        return 0.0

    def pause_work(self) -> None:
        """Stop the worker and what it has started until :meth:`resume_work`; the time counts for no deadline.

        Raises:
            NotImplementedError: it cannot be paused.
        """
        raise NotImplementedError

    def resume_work(self) -> None:
        """Let the paused worker go on.

        Raises:
            NotImplementedError: it cannot be paused.
        """
        raise NotImplementedError

    @abstractmethod
    def measure_memory(self) -> None:
        """Set :attr:`memory_bytes` to the memory that the worker and its children use now."""

    def read_cpu_ticks(self) -> int | None:
        """Return the processor time that the worker and its children have used; ``None`` if that is not known."""
        return None

    @abstractmethod
    def take_output(self) -> Output:
        """Return the output of the worker's code since the last call, and forget it; also works during a request."""

    @abstractmethod
    def read_phase_durations(self) -> Mapping[str, float]:
        """Return the seconds that each phase of the last request took, by its name, for the log."""

    def settle_memory(self) -> None:
        """Count the memory that the worker uses now as what it needs; anything beyond that is growth."""
        self.measure_memory()
        self.settled_bytes = self.memory_bytes


class Executor(ABC):
    """Runs workers on one machine, or on several. None of them outlives the block of :meth:`run_workers`."""

    @abstractmethod
    def run_workers(self) -> AbstractAsyncContextManager[object]:
        """Allow workers to be started during the block; on leaving it, all are killed, and have ended."""

    @abstractmethod
    async def start_worker(
        self, role: Role, environment: Environment, *, limit_bytes: int, deadline_s: float
    ) -> Worker:
        """Start a worker and wait until it takes requests.

        Args:
            role: The worker's role.
            environment: What the worker runs in, and on which host.
            limit_bytes: Memory that the worker and its children may use together.
            deadline_s: Seconds until the worker must be ready.

        Raises:
            WorkerError: the worker cannot be started, or is not ready in time.
            HostLost: its host is not available now.
        """

    @property
    @abstractmethod
    def workers(self) -> Iterable[Worker]:
        """All workers that have not ended."""

    @abstractmethod
    def leave_cores(self, lanes: int) -> None:
        """Leave cores to lanes: keep compilers and explorers off them, including those that already run."""


class Executors(Executor):
    """Starts each worker on its environment's machine: ``local`` on this one, ``cluster`` on any other."""

    def __init__(self, local: Executor, cluster: Executor) -> None:
        self._local = local
        self._cluster = cluster

    @asynccontextmanager
    async def run_workers(self) -> AsyncIterator[Self]:
        """Allow both to run workers during the block."""
        async with self._local.run_workers(), self._cluster.run_workers():
            yield self

    async def start_worker(
        self, role: Role, environment: Environment, *, limit_bytes: int, deadline_s: float
    ) -> Worker:
        """Start a worker, as :meth:`Executor.start_worker`."""
        executor = self._cluster if environment.host else self._local
        return await executor.start_worker(role, environment, limit_bytes=limit_bytes, deadline_s=deadline_s)

    @property
    def workers(self) -> Iterator[Worker]:
        """All workers on all machines that have not ended."""
        for executor in (self._local, self._cluster):
            yield from list(executor.workers)

    def leave_cores(self, lanes: int) -> None:
        """Leave cores of this machine to lanes."""
        self._local.leave_cores(lanes)
