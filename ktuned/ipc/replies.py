"""Answers of a worker: replies, the items and phases that precede them, failures.

The frames of one answer are any number of :class:`PhaseBegun`, :class:`Item` and :class:`Computed`, then one
:class:`Done` or :class:`Failed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from ktuned.ipc import frames
from ktuned.ipc.codec import InvalidMessage, from_plain, to_message
from ktuned.ipc.memory_fault import MemoryFault, decode_fault
from ktuned.model import Config, Device, KernelInfo, Observation, Outcome, Phase, Problem, Record, record


@record
class Empty(Record):
    """The reply of an operation that has nothing to say but that it is done."""


@record
class Ready(Record):
    """The first message of a worker's life; ``keeps_journal`` says that its phases are there, and in no message."""

    pid: int
    keeps_journal: bool = False


@record
class Absence(Record):
    """The reason why a backend has no device: its name, one line about it, and a command that mends it."""

    reason: str
    message: str
    hint: str = ""


@record
class Fault(Record):
    """An error as data: a code, one line, a hint that mends it."""

    code: str
    message: str
    hint: str = ""


@record
class BackendReport(Record):
    """One backend: its versions, what it gains from grouping, its devices, or why it has none."""

    version: str
    fingerprint: Mapping[str, str] = field(default_factory=dict)
    group_size: int = 1
    lowers: bool = False
    target: str = ""
    devices: tuple[Device, ...] = ()
    absent: Absence | None = None
    error: Fault | None = None


@record
class Observed(Record):
    """The dependencies of a probe's answer, for the daemon to see when it no longer holds.

    ``files`` maps compilers, libraries and installed distributions' records, also those that were looked for in vain,
    to :func:`~ktuned.ipc.sight` from before they were read. ``variables`` are the environment variables that decide
    among those that ``patterns`` name, and those by which things are found, ``limits`` the CPUs that the process may
    use.
    """

    files: Mapping[str, str]
    patterns: tuple[str, ...]
    variables: Mapping[str, str]
    limits: Mapping[str, str]


@record
class ProbeReport(Record):
    """An interpreter's backends by name, and its strategies.

    ``nvml`` says why NVML cannot be used, empty if it can or need not be. ``distributions`` are those installed, with
    their versions, ``executable`` is the interpreter.
    """

    version: str
    backends: Mapping[str, BackendReport]
    nvml: str = ""
    strategies: tuple[str, ...] = ()
    observed: Observed | None = None
    distributions: Mapping[str, str] = field(default_factory=dict)
    executable: str = ""


@record
class MeasuredPeaks(Record):
    """Limits of a device: GB/s, TFLOP/s by precision, and for each that could not be measured the reason."""

    gbps: float | None = None
    tflops: Mapping[str, float] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)


@record
class GpuUsers(Record):
    """Counts of foreign processes that had work on each GPU lately; ``absence`` says why they are unknown."""

    users: Mapping[str, int]
    absence: str = ""


@record
class FileFault(Record):
    """An error of a kernel file, with its place; ``path`` may be absolute, or empty where it is unknown."""

    code: str
    message: str
    hint: str
    path: str
    line: int
    excerpt: str = ""


@record
class InspectedFile(Record):
    """The declarations of one kernel file. All paths, also the kernels', are relative to the project's directory."""

    file: str
    kernels: tuple[KernelInfo, ...]
    errors: tuple[FileFault, ...]
    digests: Mapping[str, str]


@record
class Explored(Record):
    """The size of an opened space (``None`` where it cannot be counted) and the strategy that walks it.

    ``is_estimate`` says that the size is one, of the valid configs. ``notice`` says why that strategy is another than
    the plan's, ``learns`` that what it proposes depends on outcomes. ``observed`` here and in other replies is what the
    operation has read besides what the request's kernel names, with what it held. ``prior_fault`` says why the kernel
    file's prior is ignored. ``references`` are proposals for the config whose outputs are expected, the first that runs
    is it; none where the kernel file does not say that the default's are.
    """

    size: int | None
    strategy: str = ""
    notice: str = ""
    observed: tuple[Observation, ...] = ()
    is_estimate: bool = False
    learns: bool = True
    prior_fault: str = ""
    references: tuple[Proposal, ...] = ()


@record
class Proposal(Record):
    """One config with its Build as plain data; without one, ``outcome`` and ``message`` say why.

    ``cores`` is how many it uses, where the kernel file says so.
    """

    config: Config
    build: Mapping[str, Any] | None = None
    outcome: Outcome | None = None
    message: str = ""
    cores: int | None = None


@record
class Proposals(Record):
    """The strategy's next configs: ``finished`` if these are the last, ``converged`` if no better one is likely."""

    proposals: tuple[Proposal, ...]
    finished: bool
    converged: bool = False
    observed: tuple[Observation, ...] = ()


@record
class Represented(Record):
    """The problem that stands for the request's one."""

    problem: Problem


@record
class FittedPortfolio(Record):
    """A portfolio as plain data; ``fault`` is the reason why there is none."""

    portfolio: Mapping[str, Any]
    fault: str = ""


@record
class Admitted(Record):
    """The space's verdict on each of the request's configs, in their order."""

    admitted: tuple[bool, ...]


@record
class Lowered(Record):
    """A unit's function as compile workers take it, or the ``outcome`` that ends the unit; ``code`` may be empty."""

    code: bytes
    outcome: Outcome | None
    message: str
    seconds: float
    observed: tuple[Observation, ...] = ()


@record
class CompiledUnit(Record):
    """The result of one unit: sealed where ``outcome`` is ``None``.

    ``key`` is the request's; ``artifact`` that of the artifact, which the names that were ``observed`` make another
    (empty: the same). ``content`` is the digest of its decisive files (empty if it has none), ``bytes`` what was added
    to the disk.
    """

    key: str
    outcome: Outcome | None
    message: str
    seconds: float
    facts: Mapping[str, Any]
    content: str = ""
    bytes: int = 0
    artifact: str = ""
    observed: tuple[Observation, ...] = ()


@record
class Opened(Record):
    """A problem's data is made, unless its reference is ``unusable``: the message says why.

    The artifact of that reference then is damaged, or this device cannot run it (``is_damaged`` says which). ``data``
    is the digest of the inputs, of the outputs that are expected, and of what the kernel file has set in its process.
    """

    observed: tuple[Observation, ...] = ()
    data: str = ""
    unusable: str = ""
    is_damaged: bool = False


@record
class Measurement(Record):
    """The measurement of one config, times in µs; ``outcome`` is ``None`` if its artifact is damaged.

    It is ``None``, too, if a CPU config uses more ``cores`` than the request grants. ``phase`` is the one that it
    failed in, ``samples`` some of the ``count`` timings in ascending order; ``low_us`` and ``high_us`` are the median's
    95 % interval (with fewer than six timings their range); ``beaten`` says that sampling ended early, because the
    config could not win. ``contention`` says why it is unknown whether others used the device; ``overwritten`` names
    the inputs that the launch wrote to without a declaration; ``metrics`` are the kernel file's own (``metrics_fault``
    says why they failed), with the ``energy`` and its product with the latency where that was measured; ``energy_low``
    and ``energy_high`` are the ends of the energy's interval, in J. ``cost`` is what it costs by the opened objective,
    with its interval, if that is not the latency. ``seconds`` is the time that it took in the worker, ``phase_s`` by
    phase. One that differs
    from the default's outputs, and has no other fault, is timed, too: it would have the outcome ``undisputed`` if the
    default were not to be trusted. A config that wrote outside its tensors ``is_guilty``; the worker ``is_unsound`` if
    more than its guards may have been hit. ``leftover`` says what of the config stays in the worker, or which of its
    files has changed on the disk: the next one needs a fresh worker. ``compared`` counts the launches, of those that
    were timed or made like them, whose outputs were compared. ``bits`` are digests of the outputs by input, where
    they were asked for: of one that was given up on the first input alone. ``row_bits`` are those of the rows that the
    smaller problems of a batch-invariant group have, by problem. ``same_bits`` says whether they are the
    anchor's, ``nondeterministic`` that launches have left different outputs from the same inputs.
    """

    outcome: Outcome | None
    message: str = ""
    phase: Phase | None = None
    latency_us: float | None = None
    spread_us: float | None = None
    low_us: float | None = None
    high_us: float | None = None
    beaten: bool | None = None
    count: int | None = None
    samples: tuple[float, ...] | None = None
    max_error: float | None = None
    mismatched_ratio: float | None = None
    contention: str | None = None
    is_guilty: bool = False
    is_unsound: bool = False
    overwritten: tuple[str, ...] | None = None
    metrics: Mapping[str, float] | None = None
    metrics_fault: str | None = None
    undisputed: Outcome | None = None
    energy_low: float | None = None
    energy_high: float | None = None
    cost: float | None = None
    cost_low: float | None = None
    cost_high: float | None = None
    observed: tuple[Observation, ...] = ()
    cores: int | None = None
    seconds: float | None = None
    phase_s: Mapping[str, float] | None = None
    leftover: str = ""
    compared: int | None = None
    bits: tuple[str, ...] | None = None
    row_bits: Mapping[str, tuple[str, ...]] | None = None
    same_bits: bool | None = None
    nondeterministic: bool | None = None


@record
class Failure(Record):
    """The failure of a request: code, one line, hint, traceback; ``path`` and ``line`` of a kernel file's error.

    ``observed`` is what was found changed, where that is the failure.
    """

    code: str
    message: str
    hint: str = ""
    trace: str = ""
    errno: int | None = None
    path: str = ""
    line: int = 0
    observed: tuple[Observation, ...] = ()


@record
class PhaseBegun(Record):
    """The operation enters a phase, whose deadline runs from now on."""

    phase: Phase


@record
class Item(Record):
    """One of several results; the phase's deadline begins again."""

    value: Any


@record
class Computed(Record):
    """The end of computing: what is left of the request waits for the disk."""


@record
class Done(Record):
    """The operation's reply."""

    value: Any


@record
class Failed(Record):
    """The operation could not be done; the worker lives on."""

    failure: Failure


Answer = PhaseBegun | Item | Computed | Done | Failed
"""An answer that a worker sends; a :class:`~ktuned.ipc.memory_fault.MemoryFault` is the last word of one that dies."""


def encode(answer: Answer) -> bytes:
    """Return an answer's frame.

    Raises:
        FrameError: it is too large.
    """
    match answer:
        case PhaseBegun(phase):
            return frames.encode({"phase": phase})
        case Item(value):
            return frames.encode({"item": to_message(value)})
        case Computed():
            return frames.encode({"computed": True})
        case Done(value):
            return frames.encode({"done": to_message(value)})
        case Failed(failure):
            return frames.encode({"failed": to_message(failure)})


def decode(data: Mapping[str, Any], reply: type[Any], item: type[Any] | None) -> Answer | MemoryFault:
    """Return the answer that a frame holds, to an operation with these types of reply and items.

    Raises:
        InvalidMessage: it is none; a worker's pipe may be written by the code that runs there.
    """
    match data:
        case {"phase": str(name)}:
            if name not in _PHASES:
                raise InvalidMessage(f"there is no phase {name!r}")
            return _PHASES[name]
        case {"item": value} if item is not None:
            return Item(from_plain(item, value))
        case {"computed": True}:
            return _COMPUTED
        case {"done": value}:
            return Done(from_plain(reply, value))
        case {"failed": value}:
            return Failed(from_plain(Failure, value))
        case {"fault": value}:
            return decode_fault(value)
    raise InvalidMessage(f"no answer: a message of {', '.join(map(str, data)) or 'nothing'}"[:200])


_COMPUTED = Computed()
_PHASES = {phase.value: PhaseBegun(phase) for phase in Phase}
