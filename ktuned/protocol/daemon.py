"""The daemon itself: its version, the state of its parts, settings, artifacts, and the devices' limits.

``hello`` and ``shutdown`` work with a daemon of any version, because an upgrade needs them.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ktuned.model import BackendReport, DeviceModel, DeviceName, Fault, FrozenStruct, Peaks
from ktuned.protocol.kernels import RootInfo
from ktuned.protocol.method import EmptyAnswer, Method, NoParams, Params

VERSION = "0.1.0"
"""The version of ktuned, which ``hello`` and ``status`` tell."""


class HelloAnswer(FrozenStruct):
    """Identity of the daemon. The first three fields are the same in every version of the protocol.

    Attributes:
        protocol: the version of the protocol.
        build: the version of ktuned.
        pid: the daemon's process id.
        epoch: the epoch of its events.
        table: the path of the table of winners, if there is one.
    """

    protocol: int
    build: str
    pid: int | None = None
    epoch: int = 0
    table: str | None = None


class IdleInfo(FrozenStruct):
    """The idle time in s after which the daemon ends (0: never), and why it is not idle now: ``clients``, ``jobs``,
    ``watches``.
    """

    exit_s: float
    busy: tuple[str, ...]


class WorkFigures(FrozenStruct):
    """Answered requests of any method, answered lookups, and ended trials: numbers since the start, or per second."""

    requests: int | float = 0
    lookups: int | float = 0
    trials: int | float = 0


class LaneInfo(FrozenStruct):
    """A device's lane: its job, its worker, the seconds that it has measured, and the reason if it is sick."""

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


class WorkerInfo(FrozenStruct):
    """A worker process; ``host`` is empty for this machine, ``requests`` is the number of requests that it answered."""

    pid: int
    role: str
    state: str
    host: str = ""
    age_s: float = 0.0
    requests: int = 0
    memory_bytes: int = 0


class ChannelInfo(FrozenStruct, omit_defaults=True):
    """A queue: its entries and its capacity; for the store's writer, its writes and the commits that they shared."""

    used: int
    size: int | None = None
    writes: int | None = None
    commits: int | None = None


class TrafficInfo(FrozenStruct):
    """Open connections and pending requests, and the requests that were answered and refused since the start."""

    connections: int
    pending: int
    answered: int
    refused: int


class JobCounts(FrozenStruct):
    """Numbers of open jobs by state; ``waits`` counts those that wait although their device may be free, by reason."""

    queued: int = 0
    running: int = 0
    paused: int = 0
    waits: Mapping[str, int] = {}


class StoreInfo(FrozenStruct):
    """The store's rows and its size on the disk; ``notice`` says what was wrong with it when it was opened."""

    trials: int
    winners: int
    jobs: int
    bytes: int
    notice: str = ""


class ArtifactsInfo(FrozenStruct):
    """The size of all artifacts (compiled kernels), its limit, and their directory."""

    bytes: int
    cap_bytes: int
    directory: str = ""


class HostInfo(FrozenStruct):
    """A node of the cluster: its CPUs and GPUs, its state (``ready`` or ``failed``), and why not all of it is used."""

    name: str
    cpus: int
    gpus: int
    state: str
    reason: str


class ClusterInfo(FrozenStruct):
    """The cluster whose nodes are used. ``version`` is empty while it is not joined."""

    address: str
    version: str
    hosts: tuple[HostInfo, ...]


class EnvironmentInfo(FrozenStruct, omit_defaults=True):
    """An interpreter and its backends, as found by its last probe.

    The daemon's own report (:class:`~ktuned.devices.EnvironmentReport`) has more fields: hundreds of files that only
    the daemon can compare.

    Attributes:
        python: the interpreter's path.
        backends: the reports of its backends, by name.
        error: why the last probe failed; the backends are then those of the probe before.
        version: the version of Python; absent before the first probe.
        nvml: why NVML cannot list the programs on the GPUs; empty if it can.
        strategies: the installed strategies.
        host: the machine; empty for this one.
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
        """Return the fields of a longer report that the protocol has."""
        return msgspec.convert(report, cls, from_attributes=True)


class ShareInfo(FrozenStruct):
    """The team's store, and the exchange with it.

    Attributes:
        url: where the store is.
        read_only: whether nothing is written to it.
        exchanged: the Unix time of the last exchange; None before the first.
        sent: the number of winners that were sent there since the start.
        taken: the number of others' winners that became winners here since the start.
    """

    url: str
    read_only: bool
    exchanged: float | None
    sent: int
    taken: int


class StatusAnswer(FrozenStruct):
    """The state of every part of the daemon.

    Attributes:
        pid: the daemon's process id.
        version: the version of ktuned.
        protocol: the version of the protocol.
        socket: the path of the socket.
        home: the daemon's home directory.
        uptime_s: seconds since it started.
        rss_bytes: memory of the daemon process itself, without its workers.
        cpu_s: CPU time of the daemon process itself.
        epoch, seq: the position in the stream of events.
        idle: when the daemon ends without work.
        rates: the figures per second, over the last minute.
        lanes: each device's lane.
        workers: each worker process.
        gate: whether compiles may run.
        compile_slots: how many compiles may run at once.
        channels: each queue by its name; those of a running job are named ``NAME (job ID)``.
        server: connections and requests.
        jobs: the numbers of open jobs.
        policy: when tuning yields to others.
        paused: the device models whose tuning is paused; ``""`` stands for all tuning.
        store: the store's size.
        artifacts: the artifacts' size.
        cluster: the cluster whose nodes are used, if there is one.
        environments: each interpreter with its backends.
        roots: the watched roots.
        share: the team's store, if there is one.
        notices: problems of the installation, one line each.
    """

    pid: int
    version: str
    protocol: int
    socket: str
    home: str
    uptime_s: float
    rss_bytes: int
    cpu_s: float
    epoch: int
    seq: int
    idle: IdleInfo
    rates: WorkFigures
    lanes: tuple[LaneInfo, ...]
    workers: tuple[WorkerInfo, ...]
    gate: str
    compile_slots: float
    channels: Mapping[str, ChannelInfo]
    server: TrafficInfo
    jobs: JobCounts
    policy: str
    paused: tuple[str, ...]
    store: StoreInfo
    artifacts: ArtifactsInfo
    cluster: ClusterInfo | None
    environments: tuple[EnvironmentInfo, ...]
    roots: tuple[RootInfo, ...]
    notices: tuple[str, ...]
    share: ShareInfo | None = None


class BackendsAnswer(FrozenStruct):
    """The interpreters of all roots, each once."""

    environments: tuple[EnvironmentInfo, ...]


class PeaksParams(Params):
    """``peaks``: the stored limits; ``measure`` measures them first."""

    measure: bool = False


class PeaksAnswer(FrozenStruct):
    """The measured limits of each device model."""

    peaks: tuple[Peaks, ...] = ()

    @property
    def by_device(self) -> dict[str, Peaks]:
        """The limits by device model."""
        return {peaks.device: peaks for peaks in self.peaks}


HELLO = Method("hello", NoParams, HelloAnswer)
STATUS = Method("status", NoParams, StatusAnswer)
BACKENDS = Method("backends", NoParams, BackendsAnswer)
PEAKS = Method("peaks", PeaksParams, PeaksAnswer)
SHUTDOWN = Method("shutdown", NoParams, EmptyAnswer)
