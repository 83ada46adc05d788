"""Answers of a worker: its replies to requests, the items that precede them, and failures.

A request is answered by any number of :class:`Item` and :class:`Computed`, then one :class:`Done` or :class:`Failed`.
Phases are no messages: the worker writes them into its journal (:mod:`ktuned.ipc.journal`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from ktuned.ipc import frames
from ktuned.ipc.codec import InvalidMessage, from_plain, to_message
from ktuned.ipc.memory_fault import MemoryFault, decode_fault
from ktuned.model import (
    BackendReport,
    Config,
    KernelInfo,
    Observation,
    Outcome,
    Problem,
    Record,
    TrialResult,
    record,
)


@record
class Empty(Record):
    """The reply of an operation that has no result."""


@record
class Ready(Record):
    """The first message of a worker."""

    pid: int


@record
class ProbeDependencies(Record):
    """The dependencies of a probe's answer, from which the daemon sees when it no longer holds.

    Attributes:
        files: compilers, libraries and installed distributions' records, also those that were sought in vain, with
            :func:`~ktuned.ipc.take_sight` of each from before it was read.
        patterns: patterns of environment variables that decide.
        variables: the variables that these match, and those by which things are found.
        limits: the CPUs that the process may use.
    """

    files: Mapping[str, str]
    patterns: tuple[str, ...]
    variables: Mapping[str, str]
    limits: Mapping[str, str]


@record
class ProbeReport(Record):
    """An interpreter's backends by name, and its strategies.

    ``nvml`` says why NVML cannot be used; empty if it can, or need not be. ``distributions`` are the installed ones
    with their versions; ``executable`` is the interpreter.
    """

    version: str
    backends: Mapping[str, BackendReport]
    nvml: str = ""
    strategies: tuple[str, ...] = ()
    observed: ProbeDependencies | None = None
    distributions: Mapping[str, str] = field(default_factory=dict)
    executable: str = ""


@record
class GpuUsers(Record):
    """How many foreign processes had work on each GPU lately; ``absence`` says why that is unknown."""

    users: Mapping[str, int]
    absence: str = ""


@record
class FileFault(Record):
    """An error of a kernel file, with its place; ``path`` may be absolute, or empty if it is unknown."""

    code: str
    message: str
    hint: str
    path: str
    line: int
    excerpt: str = ""


@record
class InspectedFile(Record):
    """The declarations of a kernel file; all paths, the kernels' included, are relative to the project's directory."""

    file: str
    kernels: tuple[KernelInfo, ...]
    errors: tuple[FileFault, ...]
    digests: Mapping[str, str]


@record
class Explored(Record):
    """An opened space, and the strategy that walks it.

    Attributes:
        size: number of configs; None if it cannot be counted.
        is_estimate: the size is an estimate of the valid configs.
        notice: why the strategy is not the plan's.
        learns: the strategy's proposals depend on outcomes.
        observed: here and in other replies: what the operation has read that the request's kernel does not name.
        prior_fault: why the kernel file's prior is ignored.
        references: proposals for the config whose outputs are expected, of which the first that runs is it; empty
            unless the kernel file says that the default's are.
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
    """One config with its Build as plain data; without a Build, ``outcome`` and ``message`` say why.

    ``cores`` is how many it uses, if the kernel file says so.
    """

    config: Config
    build: Mapping[str, Any] | None = None
    outcome: Outcome | None = None
    message: str = ""
    cores: int | None = None


@record
class Proposals(Record):
    """The strategy's next configs; ``finished`` if they are the last, ``converged`` if no better one is likely."""

    proposals: tuple[Proposal, ...]
    finished: bool
    converged: bool = False
    observed: tuple[Observation, ...] = ()


@record
class Represented(Record):
    """The problem that stands for the bucket of the request's problem."""

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
    """A unit's function as compile workers take it (perhaps empty), or the ``outcome`` that ends the unit."""

    code: bytes
    outcome: Outcome | None
    message: str
    seconds: float
    observed: tuple[Observation, ...] = ()


@record
class CompiledUnit(Record):
    """The result of one unit; its artifact is sealed if ``outcome`` is None.

    Attributes:
        key: the unit's key in the request.
        artifact: the artifact's key, if the names that were ``observed`` change it; else empty.
        content: digest of the artifact's decisive files; empty if it has none.
        bytes: what was added to the disk.
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
    """A problem's data is made.

    Attributes:
        data: digest of the inputs, of the expected outputs, and of the settings that the kernel file has changed.
        unusable: why the reference config cannot be used, if so; no data is made then.
        is_damaged: it is because its artifact is damaged, and not because this device cannot run it.
    """

    observed: tuple[Observation, ...] = ()
    data: str = ""
    unusable: str = ""
    is_damaged: bool = False


@record
class CostRange(Record):
    """What a config costs by the opened objective, with its 95 % interval; in µs if that is the latency."""

    cost: float
    low: float
    high: float


@record
class Measurement(Record):
    """The measurement of one config: its result so far, and what it means for this worker and for other configs.

    Attributes:
        result: has no outcome if the artifact is damaged, or a CPU config uses more ``cores`` than the request grants.
        cost: what other configs are to beat; None if it was not measured now.
        is_guilty: the config wrote outside its tensors.
        is_unsound: more than guards may have been hit in this worker.
        seconds: time that it took in the worker.
        leftover: what of the config stays in the worker, or which of its files changed on the disk: the next config
            needs a fresh worker.
    """

    result: TrialResult
    cost: CostRange | None = None
    is_guilty: bool = False
    is_unsound: bool = False
    observed: tuple[Observation, ...] = ()
    seconds: float | None = None
    leftover: str = ""


@record
class Failure(Record):
    """The failure of a request: code, one line, hint and traceback; an error of a kernel file has its place.

    ``observed`` is what was found to have changed, if that is the failure.
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
class Item(Record):
    """One of several results; the phase's deadline begins again."""

    value: Any


@record
class Computed(Record):
    """Computing has ended: the rest of the request only waits for the disk."""


@record
class Done(Record):
    """The operation's reply."""

    value: Any


@record
class Failed(Record):
    """The operation could not be done; the worker lives on."""

    failure: Failure


Answer = Item | Computed | Done | Failed
"""An answer that a worker sends; a :class:`~ktuned.ipc.memory_fault.MemoryFault` is the last word of one that dies."""


def encode(answer: Answer) -> bytes:
    """Return an answer's frame.

    Raises:
        FrameError: it is too large.
    """
    match answer:
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
