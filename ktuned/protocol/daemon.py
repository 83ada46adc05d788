"""The daemon itself: who serves here, how every part does, settings, artifacts, devices' limits.

``hello``, ``status`` and ``shutdown`` work with a daemon of any version, because an upgrade needs them. So every field
of the answers to the first two has a default, and of a daemon that speaks another protocol only
:data:`LASTING_FIELDS` are read: no other field is certain to mean the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from ktuned.model import BackendReport, DeviceModel, DeviceName, Fault, Peaks
from ktuned.protocol.kernels import RootInfo
from ktuned.protocol.method import EmptyAnswer, Method, NoParams
from ktuned_client.wire import PROTOCOL_VERSION

P = TypeVar("P", bound=msgspec.Struct)
A = TypeVar("A")

LASTING_FIELDS: Final = frozenset({"protocol", "build", "version", "pid"})
"""Fields of ``hello`` and ``status`` that mean the same in every version."""


class LastingMethod(Method[P, A], frozen=True):
    """A method whose answer can be read from a daemon of any version."""

    def read_answer(self, answer: Any) -> A:
        """Return the answer; of a daemon that speaks another protocol, only its lasting fields."""
        if isinstance(answer, dict) and answer.get("protocol", PROTOCOL_VERSION) != PROTOCOL_VERSION:
            answer = {name: answer[name] for name in LASTING_FIELDS & answer.keys()}
        return super().read_answer(answer)


class HelloAnswer(msgspec.Struct, frozen=True):
    """The daemon that serves here.

    Attributes:
        build: its version.
        capabilities: features that a client may rely on besides the protocol's version.
        epoch: of its events.
        table: the path of the table of winners, if there is one.
    """

    protocol: int = PROTOCOL_VERSION
    build: str = "of an unknown version"
    capabilities: tuple[str, ...] = ()
    epoch: int = 0
    table: str | None = None
    pid: int | None = None


class IdleInfo(msgspec.Struct, frozen=True):
    """The idle time after which the daemon ends, 0 for never, and what keeps it: ``clients``, ``jobs``, ``watches``."""

    exit_s: float
    busy: tuple[str, ...]


class WorkFigures(msgspec.Struct, frozen=True):
    """Answered requests of any method, answered lookups, and ended trials: since the start, or per second."""

    requests: int | float = 0
    lookups: int | float = 0
    trials: int | float = 0


class LaneInfo(msgspec.Struct, frozen=True):
    """A device's lane: the job that has it, the worker on it, the seconds that it has measured, why it is sick."""

    device: DeviceName
    model: DeviceModel
    state: str
    reason: str = ""
    job: int | None = None
    worker_pid: int | None = None
    busy_s: float = 0.0

    @property
    def is_sick(self) -> bool:
        """True if the device has failed."""
        return self.state == "sick"


class WorkerInfo(msgspec.Struct, frozen=True):
    """A worker process; ``host`` is empty on this machine, ``requests`` is how many it has answered."""

    pid: int
    role: str
    state: str
    host: str = ""
    age_s: float = 0.0
    requests: int = 0
    memory_bytes: int = 0


class ChannelInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """A queue: its entries and its capacity; of the store's writer, its writes and the commits that they shared."""

    used: int
    size: int | None = None
    writes: int | None = None
    commits: int | None = None


class CacheSizes(msgspec.Struct, frozen=True):
    """Numbers of entries in the caches of lookups."""

    answers: int
    shortcuts: int
    winners: int
    admitted: int


class TrafficInfo(msgspec.Struct, frozen=True):
    """Open connections and waiting requests, and what was answered and refused since the start."""

    connections: int
    pending: int
    answered: int
    refused: int


class EventsInfo(msgspec.Struct, frozen=True):
    """The ring of events: the newest one's number, how many it holds, and who subscribes or lags behind."""

    seq: int
    events: int
    bytes: int
    subscribers: int
    lagging: int


class JobCounts(msgspec.Struct, frozen=True):
    """Open jobs by state, and by the reason why they wait although their device may be free."""

    queued: int = 0
    running: int = 0
    paused: int = 0
    waits: Mapping[str, int] = msgspec.field(default_factory=dict)


class StoreInfo(msgspec.Struct, frozen=True):
    """The store's rows and its size on the disk; ``notice`` says what was found wrong when it was opened."""

    trials: int
    winners: int
    jobs: int
    bytes: int
    notice: str = ""


class ArtifactsInfo(msgspec.Struct, frozen=True):
    """The size of compiled kernels, its limit, and where they are."""

    bytes: int
    cap_bytes: int
    directory: str = ""


class HostInfo(msgspec.Struct, frozen=True):
    """Another machine: ``ready``, ``starting`` or ``failed`` for a reason, its interpreter, and what to do.

    ``python`` and ``ktuned`` are the versions there; like the path of the ``interpreter`` they are empty until known.
    """

    name: str
    cpus: int
    gpus: int
    state: str
    reason: str
    interpreter: str
    python: str
    ktuned: str
    mend: str


class ExecutorInfo(msgspec.Struct, frozen=True):
    """A plugin that brings other machines; ``version`` is empty while it reaches none, and ``mend`` says what helps."""

    name: str
    version: str
    mend: str
    hosts: tuple[HostInfo, ...]


class EnvironmentInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """An interpreter and its backends by name, as it was probed last.

    The daemon knows more (:class:`~ktuned.devices.EnvironmentReport`): hundreds of files that only it can compare.

    Attributes:
        error: why the last probe failed; the backends are then those of the one before.
        version: Python's; absent before the first probe.
        nvml: why NVML cannot list the programs on the GPUs; empty if it can.
        strategies: the installed ones.
        host: the machine, if it is another one.
    """

    python: str
    backends: Mapping[str, BackendReport]
    error: Fault | None
    version: str | None = None
    nvml: str | None = None
    strategies: tuple[str, ...] | None = None
    host: str = ""

    @classmethod
    def from_report(cls, report: EnvironmentInfo) -> EnvironmentInfo:
        """Return what the protocol tells of a report that has more fields."""
        return msgspec.convert(report, cls, from_attributes=True)


class StatusAnswer(msgspec.Struct, frozen=True):
    """How every part of the daemon does. What an earlier daemon lacks is None, or empty.

    Attributes:
        rates: over the last minute.
        cpu_s: CPU time of the daemon process itself, as ``rss_bytes`` is its memory.
        gate: whether compiles may run.
        channels: each queue, by its name; of a running job ``NAME (job ID)``.
        policy: when tuning yields to others.
        paused: device models; ``""`` for all tuning.
        notices: problems of the installation, one line each.
    """

    pid: int | None = None
    version: str = "of an unknown version"
    protocol: int = PROTOCOL_VERSION
    socket: str = ""
    home: str = ""
    uptime_s: float | None = None
    rss_bytes: int | None = None
    cpu_s: float | None = None
    epoch: int = 0
    seq: int = 0
    idle: IdleInfo | None = None
    totals: WorkFigures | None = None
    rates: WorkFigures | None = None
    lanes: tuple[LaneInfo, ...] = ()
    workers: tuple[WorkerInfo, ...] = ()
    gate: str = ""
    compile_slots: float = 0
    channels: Mapping[str, ChannelInfo] = msgspec.field(default_factory=dict)
    caches: CacheSizes | None = None
    server: TrafficInfo | None = None
    events: EventsInfo | None = None
    jobs: JobCounts | None = None
    policy: str = "always"
    paused: tuple[str, ...] = ()
    store: StoreInfo | None = None
    artifacts: ArtifactsInfo | None = None
    executors: Mapping[str, ExecutorInfo] = msgspec.field(default_factory=dict)
    environments: tuple[EnvironmentInfo, ...] = ()
    roots: tuple[RootInfo, ...] = ()
    notices: tuple[str, ...] | None = None


class BackendsAnswer(msgspec.Struct, frozen=True):
    """Every interpreter that roots name, each once."""

    environments: tuple[EnvironmentInfo, ...]


class PeaksParams(msgspec.Struct, frozen=True):
    """``peaks``: what is kept; with ``measure`` also what is not yet, with ``again`` all once more."""

    measure: bool = False
    again: bool = False


class PeaksAnswer(msgspec.Struct, frozen=True):
    """The measured limits of each device model."""

    peaks: tuple[Peaks, ...] = ()

    @property
    def by_device(self) -> dict[str, Peaks]:
        """The limits by device model."""
        return {peaks.device: peaks for peaks in self.peaks}


class CollectParams(msgspec.Struct, frozen=True):
    """``gc``: ``dry_run`` lists what would be removed; the size to reach in GiB (by default the cap)."""

    dry_run: bool = False
    keep_gib: float | None = None


class CollectAnswer(msgspec.Struct, frozen=True):
    """How many artifacts were removed, or would be, and their size; then the size of all, and its cap."""

    artifacts: int
    freed_bytes: int
    bytes: int
    cap_bytes: int


class ReloadAnswer(msgspec.Struct, frozen=True):
    """The path of ``config.toml``, and the names of the settings that changed."""

    path: str
    changed: tuple[str, ...]


HELLO: Final = LastingMethod("hello", NoParams, HelloAnswer)
STATUS: Final = LastingMethod("status", NoParams, StatusAnswer)
BACKENDS: Final = Method("backends", NoParams, BackendsAnswer)
PEAKS: Final = Method("peaks", PeaksParams, PeaksAnswer)
COLLECT: Final = Method("gc", CollectParams, CollectAnswer)
RELOAD: Final = Method("reload", NoParams, ReloadAnswer)
SHUTDOWN: Final = Method("shutdown", NoParams, EmptyAnswer)
