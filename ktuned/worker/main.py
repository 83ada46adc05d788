"""A worker's loop: reads a request, carries it out, answers; one request at a time, until the pipe closes.

A worker is never asked to stop: the daemon kills it, at any moment.
"""

from __future__ import annotations

import contextlib
import os
import resource
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

from ktuned.backends import Registry
from ktuned.dependencies import ACCESSES, OBSERVER, FreshProcessNeeded
from ktuned.ipc import JOURNAL_VARIABLE, InvalidMessage, Journal, Places, Trust, frames, parent, replies, requests
from ktuned.model import Role
from ktuned.worker import imports
from ktuned.worker.failures import describe_failure
from ktuned.worker.reply import Reply, flush_output
from ktuned.worker.restart import Beginning, resumed

_READ_BYTES = 1 << 16
_OOM_SCORE = 800

Operation = Callable[[Any, Reply], Any]
"""Carries out one kind of request: takes the request and where to send phases and items, returns the reply."""


def _messages(read_fd: int) -> Iterator[dict[str, Any]]:
    decoder = frames.Decoder()
    while data := os.read(read_fd, _READ_BYTES):
        yield from decoder.feed(data)


def _requests(
    read_fd: int, pending: requests.Request[Any, Any] | None
) -> Iterator[requests.Request[Any, Any] | InvalidMessage]:
    """Yield each request, the pending one first; one that cannot be read is yielded as its error."""
    if pending is not None:
        yield pending
    for message in _messages(read_fd):
        try:
            yield requests.decode(message)
        except InvalidMessage as error:
            yield error


def _prefer_as_oom_victim() -> None:
    """Let the kernel choose a worker, and not the user's editor, when the machine runs out of memory."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as stream:
        stream.write(str(_OOM_SCORE))


class Operations:
    """The worker's operations, each imported when it is first needed."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._registry = Registry()
        self._loaded: dict[type[requests.Request[Any, Any]], Operation] = {}

    def prepare(self, role: str) -> None:
        """Import what the requests of a role need, and find the plugins: a worker that waits loses no time by it."""
        # The request that needs what fails here says so.
        with contextlib.suppress(Exception):
            for request in _EXPECTED.get(role, ()):
                self._load(request)
            self._registry.find()

    def carry_out(self, request: requests.Request[Any, Any], reply: Reply) -> Any:
        """Carry a request out and return its reply; phases and items are sent meanwhile."""
        kind = type(request)
        self._load(kind)
        return self._loaded[kind](request, reply)

    def _load(self, kind: type[requests.Request[Any, Any]]) -> None:
        if kind not in self._loaded:
            with imports.without_collections():
                self._loaded |= _LOADERS[kind](self._registry, self._places)


_Loaded = Mapping[type[requests.Request[Any, Any]], Operation]


def _load_probing(registry: Registry, places: Places) -> _Loaded:
    from ktuned.worker.contention import gpu_users
    from ktuned.worker.probe import prepare, probe

    return {
        requests.Prepare: lambda request, reply: prepare(registry, request),
        requests.Probe: lambda request, reply: probe(registry, request),
        requests.GpuUsers: lambda request, reply: gpu_users(request.ours),
    }


def _load_inspection(registry: Registry, places: Places) -> _Loaded:
    from ktuned.worker.inspect import Inspector

    inspector = Inspector(registry, places)
    return {
        requests.Inspect: inspector.inspect,
        requests.Admits: inspector.admits,
        requests.Represent: inspector.represent,
    }


def _load_fitting(registry: Registry, places: Places) -> _Loaded:
    from ktuned.worker.portfolio import fit

    return {requests.FitPortfolio: lambda request, reply: fit(request)}


def _load_exploration(registry: Registry, places: Places) -> _Loaded:
    from ktuned.worker.explore import Explorer

    explorer = Explorer(places)
    return {requests.Explore: explorer.explore, requests.Ask: explorer.ask}


def _load_compilation(registry: Registry, places: Places) -> _Loaded:
    from ktuned.worker.compile import compile_units, lower_unit, open_front_end

    return {
        requests.OpenFrontEnd: lambda request, reply: open_front_end(registry, places, request, reply),
        requests.Compile: lambda request, reply: compile_units(registry, places, request, reply),
        requests.Lower: lambda request, reply: lower_unit(registry, places, request, reply),
    }


def _load_peaks(registry: Registry, places: Places) -> _Loaded:
    from ktuned.worker.peaks import measure

    return {requests.MeasurePeaks: measure}


def _load_bench(registry: Registry, places: Places) -> _Loaded:
    from ktuned.worker.bench import Bench

    bench = Bench(registry, places)
    return {
        requests.Open: bench.open,
        requests.Close: bench.close,
        requests.Canary: bench.canary,
        requests.Trial: bench.trial,
        requests.Time: bench.time,
        requests.Check: bench.check,
        requests.TimeReference: bench.time_reference,
    }


_LOADERS: Mapping[type[requests.Request[Any, Any]], Callable[[Registry, Places], _Loaded]] = {
    **dict.fromkeys((requests.Prepare, requests.Probe, requests.GpuUsers), _load_probing),
    **dict.fromkeys((requests.Inspect, requests.Admits, requests.Represent), _load_inspection),
    requests.FitPortfolio: _load_fitting,
    **dict.fromkeys((requests.Explore, requests.Ask), _load_exploration),
    **dict.fromkeys((requests.Compile, requests.OpenFrontEnd, requests.Lower), _load_compilation),
    requests.MeasurePeaks: _load_peaks,
    **dict.fromkeys(
        (
            requests.Open,
            requests.Close,
            requests.Canary,
            requests.Trial,
            requests.Time,
            requests.Check,
            requests.TimeReference,
        ),
        _load_bench,
    ),
}

_EXPECTED: Mapping[str, tuple[type[requests.Request[Any, Any]], ...]] = {
    Role.INSPECT: (requests.Inspect,),
    Role.EXPLORE: (requests.Explore,),
    Role.COMPILE: (requests.Compile,),
    Role.BENCH: (requests.Prepare, requests.Open),
}
"""The operations that a worker of each role imports once it is ready, before its first request comes."""


def main(argv: list[str]) -> int:
    """Serve the requests on a file descriptor until the daemon closes it or dies.

    ``argv`` holds the worker's role, that descriptor, the one for answers, the daemon's process id and this machine's
    :class:`Places`; after a restart also the request to carry on with.
    """
    beginning = Beginning.here()
    (role, *numbers, places), pending = argv[:5], resumed(argv[5:])
    read_fd, write_fd, daemon_pid = map(int, numbers)
    parent.die_with(daemon_pid)
    # Children that detach count as this worker's memory, and become the daemon's when the worker is gone.
    parent.adopt_descendants()
    # Not for user code, nor for what that starts.
    number = os.environ.pop(JOURNAL_VARIABLE, "")
    journal = Journal(int(number)) if number else None
    descriptors = (read_fd, write_fd) if journal is None else (read_fd, write_fd, journal.descriptor)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _prefer_as_oom_victim()
    reply = Reply(write_fd, journal)
    OBSERVER.may_restart = True
    known = Places.from_argument(places)
    OBSERVER.trust = Trust(known.trusted)
    ACCESSES.own_directories = tuple(filter(None, (known.artifacts, known.captures, known.expected)))
    ACCESSES.start_recording()
    operations = Operations(known)
    if pending is None:
        reply.send(replies.Done(replies.Ready(os.getpid(), keeps_journal=journal is not None)))
        operations.prepare(role)
    for request in _requests(read_fd, pending):
        answer: replies.Answer
        try:
            if isinstance(request, InvalidMessage):
                raise request
            reply.begin(request.first_phase)
            answer = replies.Done(operations.carry_out(request, reply))
        except MemoryError:
            return frames.OUT_OF_MEMORY
        except FreshProcessNeeded as needed:
            flush_output()
            reply.release()
            assert not isinstance(request, InvalidMessage)
            beginning.again(needed.rest or request, descriptors)
        except BaseException as error:
            # User code may raise anything: a SystemExit of its own must not end this process.
            answer = replies.Failed(describe_failure(error))
        flush_output()
        try:
            reply.send(answer)
        except (frames.FrameError, ValueError, TypeError) as error:
            # Too large, or text that is not Unicode: this request fails, and the next one may follow.
            cause = RuntimeError(f"the answer cannot be sent: {error!r}")
            reply.send(replies.Failed(describe_failure(cause)))
    return 0


def run(argv: list[str]) -> NoReturn:
    """Be a worker process, and end without the interpreter's shutdown.

    Shutdown runs what user code has registered for it and waits for threads: with torch loaded it takes seconds, so
    that a death would look like a hang, or never ends.
    """
    code = 1
    try:
        code = main(argv)
    except BaseException:
        traceback.print_exc()
    finally:
        flush_output()
        os._exit(code)
