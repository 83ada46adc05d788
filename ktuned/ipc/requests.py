"""Requests of the daemon to a worker: one class for each operation.

A request holds nothing that depends on the machine. It names files by project, relative path and digest, artifacts by
key and tensors by digest; :class:`~ktuned.ipc.places.Places` finds them. Each class states its operation's name, the
phase in which it begins and, as type arguments, its reply and the items that precede the reply.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Generic, Never, TypeVar, Union, get_args

from ktuned.ipc import decoding, frames, replies
from ktuned.ipc.places import make_relative
from ktuned.model import (
    LATENCY,
    Config,
    Device,
    DeviceModel,
    DeviceName,
    FrozenStruct,
    KernelInfo,
    Observation,
    Outcome,
    Peaks,
    Phase,
    Plan,
    Preset,
    Problem,
    Target,
)

R = TypeVar("R")
I = TypeVar("I")  # noqa: E741 - an item

NO_DEVICE = Device(DeviceName(""), DeviceModel(""), Target(""))
"""Stands for an unknown device."""


class Request(FrozenStruct, Generic[R, I], omit_defaults=True, tag_field="op"):
    """One operation's request; ``R`` is its reply, ``I`` its items (``Never`` if it has none)."""

    first_phase: ClassVar[Phase]


class KernelRef(FrozenStruct):
    """A kernel and the files with which it was inspected; all paths are relative to the project's directory.

    Attributes:
        project: the project's name.
        file: the kernel file.
        kernel: the kernel's short name.
        backend: the name of its backend.
        sources: the declared sources.
        digests: the SHA-256 of each file that took part in the inspection; empty for an absent one.
        compiled: those files of ``digests`` on which artifacts are known to depend.
        version: identifies the code that was inspected.
        variables: the environment variables on which artifacts depend, with digests of their values.
    """

    project: str
    file: str
    kernel: str
    backend: str
    sources: tuple[str, ...]
    digests: Mapping[str, str]
    compiled: tuple[str, ...] = ()
    version: str = ""
    variables: Mapping[str, str] = {}

    @classmethod
    def from_kernel(cls, kernel: KernelInfo, project: str, root: str) -> KernelRef:
        """Refer to a kernel by its project, whose directory on this machine is ``root``."""
        return cls(
            project=project,
            file=make_relative(kernel.file, root),
            kernel=kernel.kernel,
            backend=kernel.backend,
            sources=tuple(make_relative(source, root) for source in kernel.sources),
            digests={make_relative(path, root): digest for path, digest in kernel.stamps.items()},
            compiled=tuple(make_relative(path, root) for path in kernel.compiled_files),
            version=kernel.version,
            variables=kernel.compiled_variables,
        )


class UnitRef(FrozenStruct, omit_defaults=True):
    """One config's Build as plain data, and the key of its artifact.

    ``lowered`` is the Build's function as a front end has translated it, if the backend uses one.
    """

    key: str
    build: Mapping[str, Any]
    lowered: bytes = b""


class TriedConfig(FrozenStruct):
    """The outcome of a proposed config, for the strategy.

    ``cost`` is None unless the config was measured; it is the latency in µs if that is the objective. ``doubt`` is half
    the width of the cost's 95 % interval, as a share of the cost, if it is known.
    """

    config: Config
    outcome: Outcome
    cost: float | None = None
    doubt: float | None = None


class Prepare(Request[replies.Empty, Never]):
    """Import backends with their compilers, and modules that later requests will need.

    ``holds_context`` says that the worker will measure. If its backends are for GPUs, and the machine has a single GPU,
    it makes its context now.
    """

    first_phase: ClassVar = Phase.LOAD

    backends: tuple[str, ...]
    modules: tuple[str, ...] = ()
    holds_context: bool = False


class Probe(Request[replies.ProbeReport, Never]):
    """Report the interpreter's backends, their toolchains and their devices.

    ``variables`` are the names of environment variables that the project itself sets.
    """

    first_phase: ClassVar = Phase.INSPECT

    variables: tuple[str, ...] = ()


class GpuUsers(Request[replies.GpuUsers, Never]):
    """Count the processes, except ``ours``, that worked on each GPU lately."""

    first_phase: ClassVar = Phase.INSPECT

    ours: tuple[int, ...]


class Inspect(Request[replies.Empty, replies.InspectedFile]):
    """Import kernel files (paths relative to the project) and send an item for each.

    ``learned`` are names that each kernel is known to read. The worker looks at them, and adds them to the kernel's
    digests. ``name`` is the kernels' project, if several projects share the directory.
    """

    first_phase: ClassVar = Phase.INSPECT

    project: str
    files: tuple[str, ...]
    learned: Mapping[str, tuple[Observation, ...]] = {}
    name: str = ""


class Explore(Request[replies.Explored, Never]):
    """Open the space of a kernel's problem, to search it.

    Attributes:
        first: configs to propose before all others.
        last: configs to propose after all others.
        device: the device, for the prior; for a compile-only job, only its target is known.
    """

    first_phase: ClassVar = Phase.INSPECT

    kernel: KernelRef
    problem: Problem
    plan: Plan
    first: tuple[Config, ...] = ()
    last: tuple[Config, ...] = ()
    device: Device = NO_DEVICE


class Ask(Request[replies.Proposals, Never]):
    """Report outcomes to the strategy of the opened space, and ask it for up to ``n`` configs.

    With ``anywhere``, the configs are drawn from the whole space at random, and not chosen by the strategy.
    """

    first_phase: ClassVar = Phase.INSPECT

    n: int
    tried: tuple[TriedConfig, ...] = ()
    anywhere: bool = False


class Remake(Request[replies.Remade, Never]):
    """Make a config's Build, inputs and artifact again in a fresh process, to compare them with earlier ones.

    If answers do not wait for it (``is_awaited``), the process yields to all others.
    """

    first_phase: ClassVar = Phase.INSPECT

    kernel: KernelRef
    problem: Problem
    config: Config
    target: Target
    is_awaited: bool = False


class Admits(Request[replies.Admitted, Never]):
    """Ask which configs a kernel's space admits for a problem."""

    first_phase: ClassVar = Phase.INSPECT

    kernel: KernelRef
    problem: Problem
    configs: tuple[Config, ...]


class OpenFrontEnd(Request[replies.Empty, Never]):
    """Import what :class:`Lower` needs: the backend's compiler, and a kernel file or the ``library`` that Builds name.

    With a ``build``, import the module of its function as well.
    """

    first_phase: ClassVar = Phase.LOAD

    backend: str
    kernel: KernelRef | None = None
    library: Mapping[str, Any] | None = None
    build: Mapping[str, Any] | None = None


class Lower(Request[replies.Lowered, Never]):
    """Translate a unit's function into data from which compile workers compile without importing the user's code."""

    first_phase: ClassVar = Phase.LOAD

    kernel: KernelRef
    target: str
    unit: UnitRef
    toolchain: Mapping[str, str] = {}


class Compile(Request[replies.Empty, replies.CompiledUnit]):
    """Compile units for a target, seal their artifacts and send an item for each.

    Attributes:
        kernel: the kernel.
        target: the architecture.
        staging: name of the directory in which the units are compiled.
        units: the units.
        toolchain: the toolchain's files, with their sights from when the toolchain in the units' keys was probed.
        hold_s: how long, in seconds, items may be held back, to be sent together.
        announced: send :class:`~ktuned.ipc.replies.Computed` when the last unit is compiled.
    """

    first_phase: ClassVar = Phase.LOAD

    kernel: KernelRef
    target: str
    staging: str
    units: tuple[UnitRef, ...]
    toolchain: Mapping[str, str] = {}
    hold_s: float = 0.0
    announced: bool = False


class Open(Request[replies.Opened, Never]):
    """Make a problem's data on a device, for the trials that follow.

    Attributes:
        expected: key under which the reference's results are saved.
        seed: seeds the inputs' random numbers.
        guarded: put guards around tensors. Otherwise they are ordinary tensors, whose bounds a sanitizer knows.
        is_shared: an application uses the device, too, so make the data only if there is room for it.
        objective: the figure by which configs are compared.
        reference: the default config, if the kernel file says that its outputs are the expected ones.
    """

    first_phase: ClassVar = Phase.INSPECT

    kernel: KernelRef
    problem: Problem
    target: str
    device: Device
    expected: str
    seed: int = 0
    guarded: bool = True
    is_shared: bool = False
    objective: str = LATENCY
    reference: UnitRef | None = None


class Close(Request[replies.Empty, Never]):
    """Free the opened problem's data and its memory."""

    first_phase: ClassVar = Phase.LOAD


class Canary(Request[replies.DeviceSeen, Never]):
    """Run something tiny on a device, to learn whether the device works.

    Attributes:
        warms_up: also load the device's libraries that every trial needs.
        looks: how often to look whether another program works on the device.
    """

    first_phase: ClassVar = Phase.LOAD

    device: Device
    warms_up: bool = False
    looks: int = 0


class MeasurePeaks(Request[Peaks, Never]):
    """Measure the limits of a device."""

    first_phase: ClassVar = Phase.LOAD

    device: Device


class SameBits(FrozenStruct):
    """How to compare a config's bits with the anchor's.

    Attributes:
        inputs: number of inputs on which to digest outputs.
        anchor: the anchor's digests; empty while they are unknown.
        on_all_inputs: use all inputs even if that takes long. Otherwise a slow config only uses the first input.
    """

    inputs: int
    anchor: tuple[str, ...] = ()
    on_all_inputs: bool = False


class Trial(Request[replies.Measurement, replies.Measurement]):
    """Load, check and time configs of the opened problem, one after the other.

    All measurements but the last are sent as items; the last one is the reply. A config that raises ends the batch,
    because it may have left the process in any state.

    Attributes:
        units: the configs, in this order.
        preset: how thoroughly to measure.
        judge_contention: whether load by other programs makes a measurement ``contended``.
        stop_above_us: the latency in µs above which a config is given up as hopeless.
        incumbent: the cost to beat. Sampling ends once it is clear that a config can beat neither it nor an earlier
            config of the batch.
        cores: a CPU config whose first launch uses more cores is not timed, and ends the batch.
        tolerated: processes whose load counts only if it changes a median: the applications that the tuning is for.
        known_us: the units' latencies in µs as far as they are known, if only the bits are wanted.
        hold_s: how long, in seconds, items may be held back, to be sent together.
        same_bits: how to compare bits; None to compare none.
        judged: judge configs that are not trusted (:mod:`ktuned.judging`) instead of measuring configs that are. The
            verdicts are in the results' details (``judged``). Nothing else of the request but ``preset`` and what
            follows here matters then.
        quick: judge by fewer launches.
        peaks: the device's limits, to find judged latencies that are below them.
        deadlines: how many seconds a candidate's process may take for each answer, by the phase's name.
    """

    first_phase: ClassVar = Phase.LOAD

    units: tuple[UnitRef, ...]
    preset: Preset
    judge_contention: bool
    stop_above_us: float | None = None
    incumbent: replies.CostRange | None = None
    cores: int | None = None
    tolerated: tuple[int, ...] = ()
    known_us: tuple[float | None, ...] = ()
    hold_s: float = 0.0
    same_bits: SameBits | None = None
    judged: bool = False
    quick: bool = False
    peaks: Peaks | None = None
    deadlines: Mapping[str, float] = {}


class Time(Request[replies.Measurement, Never]):
    """Time a finalist of the opened problem again, and measure what only finalists are measured for."""

    first_phase: ClassVar = Phase.LOAD

    unit: UnitRef
    preset: Preset
    judge_contention: bool


class Check(Request[replies.Measurement, Never]):
    """Launch a config of the opened problem once and check it. The measurement has no latency."""

    first_phase: ClassVar = Phase.LOAD

    unit: UnitRef


class TimeReference(Request[replies.Measurement, Never]):
    """Time the reference function of the opened problem."""

    first_phase: ClassVar = Phase.LOAD

    preset: Preset
    judge_contention: bool


class EvaluateMetrics(Request[replies.Metrics, Never]):
    """Compute the kernel file's own metrics of the opened problem for latencies that were corrected since."""

    first_phase: ClassVar = Phase.CHECK

    latencies_us: tuple[float, ...]


def choose_incumbent(
    incumbent: replies.CostRange | None, measured: replies.Measurement, wanted: SameBits | None = None
) -> replies.CostRange | None:
    """Return the cost to beat after a measurement: the incumbent's, unless the measured one is lower.

    Only a fully sampled config beats others. If bits are ``wanted``, it must have the anchor's bits, as far as known.
    """
    result, cost = measured.result, measured.cost
    if cost is None or result.outcome is not Outcome.MEASURED or result.detail.timing.beaten:
        return incumbent
    found = result.detail.numerics
    if wanted is not None and (found.same_bits is False or not wanted.anchor or not found.bits):
        return incumbent
    return cost if incumbent is None or cost.cost < incumbent.cost else incumbent


REQUESTS: tuple[type[Request[Any, Any]], ...] = tuple(Request.__subclasses__())
"""Every operation above."""

_AnyRequest: Any = Union[REQUESTS]  # noqa: UP007


def encode(request: Request[Any, Any]) -> bytes:
    """Return a request's frame.

    Raises:
        FrameError: it is too large.
    """
    return frames.encode(request)


def decode(data: bytes) -> Request[Any, Any]:
    """Return the request that a frame holds.

    Raises:
        InvalidMessage: the operation is unknown, or a field is missing or not of its type.
    """
    request: Request[Any, Any] = decoding.decode(data, _AnyRequest)
    return request


def find_answer_types(request: type[Request[Any, Any]]) -> tuple[type[Any], type[Any] | None]:
    """Return the types of an operation's reply and of its items."""
    reply, item = get_args(request.__orig_bases__[0])  # type: ignore[attr-defined]
    return reply, None if item is Never else item
