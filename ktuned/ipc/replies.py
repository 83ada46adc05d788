"""Answers of a worker: its replies to requests, the items that precede them, and failures.

A request is answered by any number of :class:`Item`, :class:`Computed` and :class:`Restarting`, then one :class:`Done`
or :class:`Failed`. Phases are no messages: the worker writes them into its journal (:mod:`ktuned.ipc.journal`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ktuned.ipc import decoding, frames
from ktuned.ipc.decoding import InvalidMessage
from ktuned.model import BackendReport, Config, FrozenStruct, KernelInfo, Observation, Outcome, TrialResult


class Empty(FrozenStruct):
    """The reply of an operation that has no result."""


class Ready(FrozenStruct):
    """The first message of a worker."""

    pid: int


class Remade(FrozenStruct):
    """What was made again: digests by part, and the CPU time in seconds that it took."""

    parts: Mapping[str, str]
    cpu_s: float


class ProbeDependencies(FrozenStruct):
    """The dependencies of a probe's answer, by which the daemon notices that the answer is out of date.

    Attributes:
        files: compilers, libraries and installed distributions' records, also absent ones that were looked for. Each
            has its :func:`~ktuned.ipc.read_sight_text` from before it was read.
        patterns: patterns of environment variables that decide artifacts or measurements.
        variables: the variables that these match, and those by which programs and packages are found.
        limits: the CPUs that the process may use.
    """

    files: Mapping[str, str]
    patterns: tuple[str, ...]
    variables: Mapping[str, str]
    limits: Mapping[str, str]


class ProbeReport(FrozenStruct):
    """An interpreter's backends and search strategies.

    Attributes:
        version: the interpreter's version of Python.
        backends: what was found of each backend, by name.
        nvml: why NVML cannot be used; empty if it can, or if it is not needed.
        strategies: the names of the installed search strategies.
        observed: what the report depends on.
        distributions: the versions of the installed distributions, by name.
        executable: the interpreter.
    """

    version: str
    backends: Mapping[str, BackendReport]
    nvml: str = ""
    strategies: tuple[str, ...] = ()
    observed: ProbeDependencies | None = None
    distributions: Mapping[str, str] = {}
    executable: str = ""


class GpuUsers(FrozenStruct):
    """How many other processes worked on each GPU lately; ``absence`` says why that is unknown."""

    users: Mapping[str, int]
    absence: str = ""


class FileFault(FrozenStruct):
    """An error of a kernel file, with its place; ``path`` may be absolute, or empty if it is unknown."""

    code: str
    message: str
    hint: str
    path: str
    line: int
    excerpt: str = ""


class InspectedFile(FrozenStruct):
    """The declarations of a kernel file; all paths, the kernels' included, are relative to the project's directory."""

    file: str
    kernels: tuple[KernelInfo, ...]
    errors: tuple[FileFault, ...]
    digests: Mapping[str, str]


class Explored(FrozenStruct):
    """An opened space, and the strategy that walks it.

    Attributes:
        size: number of configs; None if it cannot be counted, or is above 2^63.
        strategy: the name of the strategy.
        notice: why the strategy is not the plan's.
        observed: names that the operation has read and that the request's kernel does not list. Other replies have
            this field, too.
        is_estimate: whether the size is an estimate of the valid configs.
        learns: whether the strategy's proposals depend on outcomes.
        prior_fault: why the kernel file's prior is ignored.
        references: candidates for the default config, if its outputs are the expected ones: the first that runs is
            used. Empty for other kernels.
    """

    size: int | None
    strategy: str = ""
    notice: str = ""
    observed: tuple[Observation, ...] = ()
    is_estimate: bool = False
    learns: bool = True
    prior_fault: str = ""
    references: tuple[Proposal, ...] = ()


class Proposal(FrozenStruct):
    """One config with its Build as plain data; without a Build, ``outcome`` and ``message`` say why.

    ``cores`` is the number of cores that the config uses, if the kernel file declares it.
    """

    config: Config
    build: Mapping[str, Any] | None = None
    outcome: Outcome | None = None
    message: str = ""
    cores: int | None = None


class Proposals(FrozenStruct):
    """The strategy's next configs; ``finished`` if they are the last, ``converged`` if a better one is unlikely."""

    proposals: tuple[Proposal, ...]
    finished: bool
    converged: bool = False
    observed: tuple[Observation, ...] = ()


class Admitted(FrozenStruct):
    """The space's verdict on each of the request's configs, in their order."""

    admitted: tuple[bool, ...]


class Lowered(FrozenStruct):
    """A unit's function as data for compile workers, which may be empty, or the ``outcome`` that ends the unit."""

    code: bytes
    outcome: Outcome | None
    message: str
    seconds: float
    observed: tuple[Observation, ...] = ()


class CompiledUnit(FrozenStruct, omit_defaults=True):
    """The result of one unit; its artifact is sealed if ``outcome`` is None.

    Attributes:
        key: the unit's key in the request.
        artifact: the artifact's key if it differs from ``key``, because of the names that were ``observed``.
        content: digest of the artifact's decisive files; empty if it has none.
        bytes: how much was added to the disk.
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


class Opened(FrozenStruct):
    """A problem's data was made, or could not be.

    Attributes:
        observed: names that were read and that the request's kernel does not list.
        data: digest of the inputs, of the expected outputs, and of the settings that the kernel file has changed.
        unusable: why the reference config cannot be used, if that is so. Then no data was made.
        is_damaged: whether the reason is a damaged artifact, and not that this device cannot run it.
        inputs: digest of the declared inputs; empty if the kernel file has made a tensor itself.
    """

    observed: tuple[Observation, ...] = ()
    data: str = ""
    unusable: str = ""
    is_damaged: bool = False
    inputs: str = ""


class CostRange(FrozenStruct):
    """A config's cost by the problem's objective, with its 95 % interval; in µs if the objective is the latency."""

    cost: float
    low: float
    high: float


class Measurement(FrozenStruct, omit_defaults=True):
    """The measurement of one config: its result so far, and what it means for this worker and for other configs.

    Attributes:
        result: the result; without an outcome if the artifact is damaged, or if a CPU config uses more cores than the
            request allows.
        cost: the cost that other configs have to beat; None if it was not measured now.
        is_guilty: whether the config wrote outside its tensors.
        is_unsound: whether such writes may have hit more than guards, so that this worker must not go on.
        observed: names that were read and that the request's kernel does not list.
        seconds: time that it took in the worker.
        leftover: what the config has left behind in the worker, or which of the worker's files has changed on the disk.
            Empty if the next config needs no fresh worker.
        taken_s: the seconds of the whole request in which a config shared the device with another program; None if
            this config did not use it.
    """

    result: TrialResult
    cost: CostRange | None = None
    is_guilty: bool = False
    is_unsound: bool = False
    observed: tuple[Observation, ...] = ()
    seconds: float | None = None
    leftover: str = ""
    taken_s: float | None = None


class DeviceSeen(FrozenStruct):
    """A device works. ``taken_s`` is 0 if no other program works on it now, and otherwise the time of this look."""

    taken_s: float = 0.0


class Metrics(FrozenStruct):
    """The kernel file's own metrics, for each latency of the request."""

    figures: tuple[dict[str, float], ...]


class Failure(FrozenStruct, omit_defaults=True):
    """The failure of a request: code, one line, hint and traceback; an error of a kernel file has its place.

    ``observed`` are the names that were found to have changed, if that is the failure.
    """

    code: str
    message: str
    hint: str = ""
    trace: str = ""
    errno: int | None = None
    path: str = ""
    line: int = 0
    observed: tuple[Observation, ...] = ()


class Item(FrozenStruct):
    """One of several results; the phase's deadline begins again."""

    value: Any


class Computed(FrozenStruct):
    """Computing has ended: the rest of the request only waits for the disk."""


class Restarting(FrozenStruct):
    """The worker starts again as a fresh process, and then goes on with the request."""

    reason: str


class Done(FrozenStruct):
    """The operation's reply."""

    value: Any


class Failed(FrozenStruct):
    """The operation could not be done; the worker takes the next request."""

    failure: Failure


Answer = Item | Computed | Restarting | Done | Failed
"""An answer of a worker."""


def encode(answer: Answer) -> bytes:
    """Return an answer's frame.

    Raises:
        FrameError: it is too large.
    """
    match answer:
        case Item(value):
            return frames.encode({"item": value})
        case Computed():
            return frames.encode({"computed": True})
        case Restarting(reason):
            return frames.encode({"restarting": reason})
        case Done(value):
            return frames.encode({"done": value})
        case Failed(failure):
            return frames.encode({"failed": failure})


class _Message(FrozenStruct):
    """A frame of an answer; it has one of these fields."""

    item: msgspec.Raw = msgspec.Raw()
    done: msgspec.Raw = msgspec.Raw()
    failed: Failure | None = None
    computed: bool = False
    restarting: str | None = None


def decode(data: bytes, reply: type[Any], item: type[Any] | None) -> Answer:
    """Return the answer in a frame, for an operation with these types of reply and items.

    Raises:
        InvalidMessage: it is no answer, because user code in a worker may write to the worker's pipe.
    """
    message = decoding.decode(data, _Message)
    if bytes(message.item) and item is not None:
        return Item(decoding.decode(message.item, item))
    if bytes(message.done):
        return Done(decoding.decode(message.done, reply))
    if message.computed:
        return _COMPUTED
    if message.restarting is not None:
        return Restarting(message.restarting)
    if message.failed is not None:
        return Failed(message.failed)
    raise InvalidMessage("a message that is no answer")


_COMPUTED = Computed()
