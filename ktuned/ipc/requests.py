"""Requests of the daemon to a worker: one dataclass for each operation.

A request holds nothing that depends on the machine: it names files by project, relative path and digest, artifacts by
key and tensors by digest; :class:`~ktuned.ipc.places.Places` resolves them. Each request class states its operation's
name, the phase that it begins in, and, as type arguments, its reply and the items that precede it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar, Generic, Never, TypeVar, get_args

from ktuned.ipc import frames, replies
from ktuned.ipc.codec import InvalidMessage, from_plain, to_message
from ktuned.ipc.places import relative
from ktuned.model import (
    LATENCY,
    Config,
    Device,
    DeviceModel,
    DeviceName,
    EarlierSearch,
    KernelInfo,
    Observation,
    Outcome,
    Phase,
    Plan,
    Preset,
    Problem,
    Record,
    Target,
    record,
)

R = TypeVar("R")
I = TypeVar("I")  # noqa: E741 - an item

NO_DEVICE = Device(DeviceName(""), DeviceModel(""), Target(""))
"""Stands for a device of which nothing is known."""

_OPERATION = "op"


class Request(Record, Generic[R, I]):
    """One operation's request; ``R`` is its reply, ``I`` what it sends before (``Never`` if nothing)."""

    operation: ClassVar[str]
    first_phase: ClassVar[Phase]


@record
class KernelRef(Record):
    """A kernel and the files that it was inspected in.

    ``file`` and ``sources`` are relative to the project's directory, as are the keys of ``digests``: each file that
    had a part in the inspection, with its SHA-256, or ``""`` for one that was absent. ``compiled`` are those of them
    that artifacts are known to depend on, ``version`` identifies the code that was inspected.
    """

    project: str
    file: str
    kernel: str
    backend: str
    sources: tuple[str, ...]
    digests: Mapping[str, str]
    compiled: tuple[str, ...] = ()
    version: str = ""

    @classmethod
    def of(cls, kernel: KernelInfo, project: str, root: str) -> KernelRef:
        """Name a kernel by its project, whose directory is ``root`` on this machine."""
        return cls(
            project=project,
            file=relative(kernel.file, root),
            kernel=kernel.kernel,
            backend=kernel.backend,
            sources=tuple(relative(source, root) for source in kernel.sources),
            digests={relative(path, root): digest for path, digest in kernel.stamps.items()},
            compiled=tuple(relative(path, root) for path in kernel.compiled_files),
            version=kernel.version,
        )


@record
class UnitRef(Record):
    """One config's Build as plain data, and the key of its artifact.

    ``lowered`` is what a backend made of its function.
    """

    key: str
    build: Mapping[str, Any]
    lowered: bytes = b""


@record
class Tried(Record):
    """The outcome of a proposed config, for the strategy; what it ``cost`` if it was measured.

    The cost is the latency in µs where that is the objective. ``doubt`` is half of its 95 % interval as a share of it,
    where that is known.
    """

    config: Config
    outcome: Outcome
    cost: float | None = None
    doubt: float | None = None


@record
class Prepare(Request[replies.Empty, Never]):
    """Import backends, with what they compile and load with, and modules that later requests will need.

    ``holds_context`` says that the worker will measure: where its backends are for GPUs, and there is one, it makes its
    context there meanwhile.
    """

    operation: ClassVar = "prepare"
    first_phase: ClassVar = Phase.LOAD

    backends: tuple[str, ...]
    modules: tuple[str, ...] = ()
    holds_context: bool = False


@record
class Probe(Request[replies.ProbeReport, Never]):
    """Report the interpreter's backends, their toolchains and their devices.

    ``variables`` names the environment variables that the project itself sets.
    """

    operation: ClassVar = "probe"
    first_phase: ClassVar = Phase.INSPECT

    variables: tuple[str, ...] = ()


@record
class GpuUsers(Request[replies.GpuUsers, Never]):
    """Count the processes besides ``ours`` that had work on each GPU lately."""

    operation: ClassVar = "gpu_users"
    first_phase: ClassVar = Phase.INSPECT

    ours: tuple[int, ...]


@record
class Inspect(Request[replies.Empty, replies.InspectedFile]):
    """Import kernel files (paths relative to the project) and send an item for each.

    ``learned`` are names that kernels were observed to read; they are looked at, and become part of their digests.
    ``name`` is the project that the kernels belong to, where that shares its directory with others.
    """

    operation: ClassVar = "inspect"
    first_phase: ClassVar = Phase.INSPECT

    project: str
    files: tuple[str, ...]
    learned: Mapping[str, tuple[Observation, ...]] = field(default_factory=dict)
    name: str = ""


@record
class Explore(Request[replies.Explored, Never]):
    """Open the space of a kernel's problem: configs to propose ``first``, and those to leave for ``last``.

    ``device`` is what a prior may look at; of one that is only compiled for, only the target is known. ``earlier`` are
    similar searches, the most similar first.
    """

    operation: ClassVar = "explore"
    first_phase: ClassVar = Phase.INSPECT

    kernel: KernelRef
    problem: Problem
    plan: Plan
    first: tuple[Config, ...] = ()
    last: tuple[Config, ...] = ()
    device: Device = NO_DEVICE
    earlier: tuple[EarlierSearch, ...] = ()


@record
class Ask(Request[replies.Proposals, Never]):
    """Report outcomes to the strategy of the opened space, and ask it for up to ``n`` configs.

    With ``anywhere`` they are drawn from the whole space instead, whatever the strategy would choose.
    """

    operation: ClassVar = "ask"
    first_phase: ClassVar = Phase.INSPECT

    n: int
    tried: tuple[Tried, ...] = ()
    anywhere: bool = False


@record
class Admits(Request[replies.Admitted, Never]):
    """Ask which configs a kernel's space admits for a problem."""

    operation: ClassVar = "admits"
    first_phase: ClassVar = Phase.INSPECT

    kernel: KernelRef
    problem: Problem
    configs: tuple[Config, ...]


@record
class Represent(Request[replies.Represented, Never]):
    """Ask which problem stands for a problem's bucket, by the kernel file's own function."""

    operation: ClassVar = "represent"
    first_phase: ClassVar = Phase.INSPECT

    kernel: KernelRef
    problem: Problem


@record
class FitPortfolio(Request[replies.FittedPortfolio, Never]):
    """Fit a portfolio of at most so many configs to a matrix (``ktuned.portfolio.Matrix`` as plain data)."""

    operation: ClassVar = "fit_portfolio"
    first_phase: ClassVar = Phase.INSPECT

    matrix: Mapping[str, Any]
    max_configs: int
    wanted_loss: float


@record
class OpenFrontEnd(Request[replies.Empty, Never]):
    """Import what :class:`Lower` needs: the backend's compiler, and a kernel file or a ``library`` that Builds name.

    With a ``build`` also the module that its function is in.
    """

    operation: ClassVar = "open_front_end"
    first_phase: ClassVar = Phase.LOAD

    backend: str
    kernel: KernelRef | None = None
    library: Mapping[str, Any] | None = None
    build: Mapping[str, Any] | None = None


@record
class Lower(Request[replies.Lowered, Never]):
    """Translate a unit's function into what compile workers take in its place."""

    operation: ClassVar = "lower"
    first_phase: ClassVar = Phase.LOAD

    kernel: KernelRef
    target: str
    unit: UnitRef
    toolchain: Mapping[str, str] = field(default_factory=dict)


@record
class Compile(Request[replies.Empty, replies.CompiledUnit]):
    """Compile units for a target in the directory ``staging``, seal their artifacts and send an item for each.

    ``toolchain`` holds the sights of the files by which the toolchain in the units' keys was known. Units whose backend
    gains nothing from a group are compiled one after the other; items may be held back for ``hold_s``, to be sent
    together. Where it is ``announced``, :class:`~ktuned.ipc.replies.Computed` is sent when the last one is compiled.
    """

    operation: ClassVar = "compile"
    first_phase: ClassVar = Phase.LOAD

    kernel: KernelRef
    target: str
    staging: str
    units: tuple[UnitRef, ...]
    toolchain: Mapping[str, str] = field(default_factory=dict)
    hold_s: float = 0.0
    announced: bool = False


@record
class Open(Request[replies.Opened, Never]):
    """Make a problem's data on a device, for the trials that follow.

    ``captured`` is the digest of the inputs that an application captured, empty without; ``expected`` the key that the
    reference's results are kept under; ``seed`` chooses among inputs that are all alike but for their random numbers.
    Tensors that are not ``guarded`` are ordinary ones, whose bounds a sanitizer knows. On a device that ``is_shared``
    with an application, the problem is only made where there is room for it. ``objective`` is what configs are judged
    by; with ``needs_energy`` their energy is measured, too. ``reference`` is the config whose outputs are expected,
    where the kernel file says that the default's are.
    """

    operation: ClassVar = "open"
    first_phase: ClassVar = Phase.INSPECT

    kernel: KernelRef
    problem: Problem
    target: str
    device: Device
    captured: str
    expected: str
    seed: int = 0
    guarded: bool = True
    is_shared: bool = False
    objective: str = LATENCY
    needs_energy: bool = False
    reference: UnitRef | None = None


@record
class Close(Request[replies.Empty, Never]):
    """Give up the opened problem's data, and the memory that it took."""

    operation: ClassVar = "close"
    first_phase: ClassVar = Phase.LOAD


@record
class Canary(Request[replies.Empty, Never]):
    """Run something tiny on a device, to learn whether it works.

    A worker that ``warms_up`` also has the device's libraries loaded, as far as every trial needs them.
    """

    operation: ClassVar = "canary"
    first_phase: ClassVar = Phase.LOAD

    device: Device
    warms_up: bool = False


@record
class MeasurePeaks(Request[replies.MeasuredPeaks, Never]):
    """Measure the limits of a device."""

    operation: ClassVar = "measure_peaks"
    first_phase: ClassVar = Phase.LOAD

    device: Device


@record
class SameBits(Record):
    """What is asked of a config's bits: digests on so many ``inputs``, and how they compare with the ``anchor``'s.

    The anchor's own are not known yet where they are empty. Unless those ``on_all_inputs`` are asked for, the first one
    is enough where the others take their time.
    """

    inputs: int
    anchor: tuple[str, ...] = ()
    on_all_inputs: bool = False


@record
class Incumbent(Record):
    """The cost of the config to beat by the job's objective (its latency in µs, where that is the objective), with the
    95 % interval, as measured in this job.
    """

    cost: float
    low: float
    high: float

    @staticmethod
    def after(
        incumbent: Incumbent | None, measured: replies.Measurement, wanted: SameBits | None = None
    ) -> Incumbent | None:
        """Return the cost to beat after a measurement: the incumbent's, unless that of a fully sampled one is lower.

        Where bits are ``wanted`` only a config beats others that has the anchor's, for all that is known of them.
        """
        if measured.outcome is not Outcome.MEASURED or measured.beaten:
            return incumbent
        if wanted is not None and (measured.same_bits is False or not wanted.anchor or not measured.bits):
            return incumbent
        cost, low, high = measured.cost, measured.cost_low, measured.cost_high
        if cost is None:
            cost, low, high = measured.latency_us, measured.low_us, measured.high_us
        if cost is None or low is None or high is None or (incumbent is not None and incumbent.cost <= cost):
            return incumbent
        return Incumbent(cost, low, high)


@record
class Trial(Request[replies.Measurement, replies.Measurement]):
    """Load, check and time configs of the opened problem, one after the other.

    All measurements but the last are sent as items, the last one is the reply. A config that raises ends the batch:
    it may have left the process in any state. A config that is slower than ``stop_above_us`` is not measured; one that
    cannot beat the ``incumbent``, or one before it in the batch, is measured no better than that takes. A CPU config
    whose first launch uses more than ``cores`` is not timed, and ends the batch. The load of ``tolerated`` processes,
    the applications that the tuning is for, counts only where it changes a median. ``known_us`` are the latencies of
    the units, where that is known and only the energy or the bits are wanted. Items may be held back for ``hold_s``, to
    be sent together. ``same_bits`` asks for the configs' bits.
    """

    operation: ClassVar = "trial"
    first_phase: ClassVar = Phase.LOAD

    units: tuple[UnitRef, ...]
    preset: Preset
    judge_contention: bool
    stop_above_us: float | None = None
    incumbent: Incumbent | None = None
    cores: int | None = None
    tolerated: tuple[int, ...] = ()
    known_us: tuple[float | None, ...] = ()
    hold_s: float = 0.0
    same_bits: SameBits | None = None


@record
class Time(Request[replies.Measurement, Never]):
    """Time a finalist of the opened problem again, or, where its latency is ``known_us``, measure its energy again."""

    operation: ClassVar = "time"
    first_phase: ClassVar = Phase.LOAD

    unit: UnitRef
    preset: Preset
    judge_contention: bool
    known_us: float | None = None


@record
class Check(Request[replies.Measurement, Never]):
    """Launch a config of the opened problem once and check it; the measurement of a right one has no latency."""

    operation: ClassVar = "check"
    first_phase: ClassVar = Phase.LOAD

    unit: UnitRef


@record
class TimeReference(Request[replies.Measurement, Never]):
    """Time the reference function of the opened problem."""

    operation: ClassVar = "time_reference"
    first_phase: ClassVar = Phase.LOAD

    preset: Preset
    judge_contention: bool


REQUESTS: Mapping[str, type[Request[Any, Any]]] = {
    request.operation: request
    for request in (
        Prepare,
        Probe,
        GpuUsers,
        Inspect,
        Explore,
        Ask,
        Admits,
        Represent,
        FitPortfolio,
        OpenFrontEnd,
        Lower,
        Compile,
        Open,
        Close,
        Canary,
        MeasurePeaks,
        Trial,
        Time,
        Check,
        TimeReference,
    )
}
"""Every operation by its name."""


def encode(request: Request[Any, Any]) -> bytes:
    """Return a request's frame.

    Raises:
        FrameError: it is too large.
    """
    return frames.encode(plain(request))


def plain(request: Request[Any, Any]) -> dict[str, Any]:
    """Return a request as the map that its frame holds, and :func:`decode` reads."""
    return {_OPERATION: request.operation, **to_message(request)}


def decode(data: Mapping[str, Any]) -> Request[Any, Any]:
    """Return the request that a frame holds.

    Raises:
        InvalidMessage: the operation is unknown, or a field is missing or not of its type.
    """
    name = data.get(_OPERATION)
    if not isinstance(name, str) or name not in REQUESTS:
        raise InvalidMessage(f"there is no operation {name!r}", hint="install one version of ktuned everywhere")
    return from_plain(REQUESTS[name], data)


def answer_types(request: type[Request[Any, Any]]) -> tuple[type[Any], type[Any] | None]:
    """Return the types of an operation's reply and of its items."""
    reply, item = get_args(request.__orig_bases__[0])  # type: ignore[attr-defined]
    return reply, None if item is Never else item
