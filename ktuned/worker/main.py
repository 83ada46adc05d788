"""A worker's loop: read a request, carry it out, answer; one request at a time, until the pipe closes.

How a request ends, and what the daemon sees of it:

====================================  ================================================================================
it returns                            ``Done`` with the reply
it raises, even ``SystemExit``        ``Failed`` with the exception's text; the worker takes the next request
it runs out of memory                 the process exits with ``OUT_OF_MEMORY``: only this gives the memory back
it needs a fresh process              the process executes itself again (:mod:`ktuned.worker.restart`) and carries on
                                      with the request; the daemon sees one longer request
it crashes or hangs                   nothing is sent; the daemon notices the closed pipe, or a deadline that passes
====================================  ================================================================================

A worker is never asked to stop. The daemon kills it, at any moment, so nothing here may need a clean shutdown.

Operations are imported when a request first needs them: a worker that inspects files has no use for torch. What the
worker's role is likely to need is imported ahead, after ``Ready`` was sent.
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
from ktuned.worker.reply import Reply, describe_failure, flush_output
from ktuned.worker.restart import ProcessStart, find_start_time, read_resumed_request

_READ_BYTES = 1 << 16
_OOM_SCORE = 800

Operation = Callable[[Any, Reply], Any]
"""Carries out one kind of request. Takes the request, and where to send phases and items; returns the reply."""


def _read_messages(read_fd: int) -> Iterator[bytes]:
    decoder = frames.Decoder()
    while data := os.read(read_fd, _READ_BYTES):
        yield from decoder.feed(data)


def _read_requests(
    read_fd: int, pending: requests.Request[Any, Any] | None
) -> Iterator[requests.Request[Any, Any] | InvalidMessage]:
    """Yield each request, the pending one first. A message that cannot be decoded is yielded as its error."""
    if pending is not None:
        yield pending
    for message in _read_messages(read_fd):
        try:
            yield requests.decode(message)
        except InvalidMessage as error:
            yield error


def _prefer_as_oom_victim() -> None:
    """Make Linux kill a worker, and not the user's editor, when the machine runs out of memory."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as stream:
        stream.write(str(_OOM_SCORE))


class Operations:
    """The worker's operations, each imported when it is first needed."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._registry = Registry()
        self._operations: dict[type[requests.Request[Any, Any]], Operation] = {}

    def import_for_role(self, role: str) -> None:
        """Import the operations of a role's requests, and find the plugins, while the worker has nothing else to do."""
        # An import that fails here fails again in the request that needs it, which reports it.
        with contextlib.suppress(Exception):
            for request in _NEEDED_FIRST.get(role, ()):
                self._import_operation(request)
            self._registry.find_plugins()

    def carry_out_request(self, request: requests.Request[Any, Any], reply: Reply) -> Any:
        """Carry out a request and return its reply; phases and items are sent on the way."""
        kind = type(request)
        self._import_operation(kind)
        return self._operations[kind](request, reply)

    def _import_operation(self, kind: type[requests.Request[Any, Any]]) -> None:
        if kind not in self._operations:
            with imports.pause_garbage_collection():
                self._operations |= _LOADERS[kind](self._registry, self._places)


_OperationTable = Mapping[type[requests.Request[Any, Any]], Operation]


def _load_probing_operations(registry: Registry, places: Places) -> _OperationTable:
    from ktuned.worker.probe import count_gpu_users, import_modules_ahead, probe_interpreter

    return {
        requests.Prepare: lambda request, reply: import_modules_ahead(registry, request),
        requests.Probe: lambda request, reply: probe_interpreter(registry, request),
        requests.GpuUsers: lambda request, reply: count_gpu_users(request.ours),
    }


def _load_inspection_operations(registry: Registry, places: Places) -> _OperationTable:
    from ktuned.worker.inspect import Inspector

    inspector = Inspector(registry, places)
    return {
        requests.Inspect: inspector.inspect_files,
        requests.Admits: inspector.find_admitted_configs,
    }


def _load_exploration_operations(registry: Registry, places: Places) -> _OperationTable:
    from ktuned.worker.explore import Explorer

    explorer = Explorer(places)
    return {requests.Explore: explorer.open_space, requests.Ask: explorer.propose_configs}


def _load_compilation_operations(registry: Registry, places: Places) -> _OperationTable:
    from ktuned.worker.compile import compile_units

    return {requests.Compile: lambda request, reply: compile_units(registry, places, request, reply)}


def _load_repetition_operations(registry: Registry, places: Places) -> _OperationTable:
    from ktuned.worker.remake import remake_winner

    return {requests.Remake: lambda request, reply: remake_winner(registry, places, request, reply)}


def _load_front_end_operations(registry: Registry, places: Places) -> _OperationTable:
    from ktuned.worker.front_end import lower_unit, open_front_end

    return {
        requests.OpenFrontEnd: lambda request, reply: open_front_end(registry, places, request, reply),
        requests.Lower: lambda request, reply: lower_unit(registry, places, request, reply),
    }


def _load_peaks_operations(registry: Registry, places: Places) -> _OperationTable:
    from ktuned.measuring import measure_peaks

    return {requests.MeasurePeaks: lambda request, reply: measure_peaks(request.device, on_phase=reply.begin_phase)}


def _load_bench_operations(registry: Registry, places: Places) -> _OperationTable:
    from ktuned.worker.bench import Bench
    from ktuned.worker.canary import run_canary

    bench = Bench(registry, places)
    return {
        requests.Open: bench.open_problem,
        requests.Close: bench.close_problem,
        requests.Canary: lambda request, reply: run_canary(request),
        requests.Trial: bench.run_trial,
        requests.Time: bench.time_finalist,
        requests.Check: bench.check_config,
        requests.TimeReference: bench.time_reference,
        requests.EvaluateMetrics: bench.evaluate_metrics,
    }


_LOADERS: Mapping[type[requests.Request[Any, Any]], Callable[[Registry, Places], _OperationTable]] = {
    **dict.fromkeys((requests.Prepare, requests.Probe, requests.GpuUsers), _load_probing_operations),
    **dict.fromkeys((requests.Inspect, requests.Admits), _load_inspection_operations),
    **dict.fromkeys((requests.Explore, requests.Ask), _load_exploration_operations),
    requests.Compile: _load_compilation_operations,
    requests.Remake: _load_repetition_operations,
    **dict.fromkeys((requests.OpenFrontEnd, requests.Lower), _load_front_end_operations),
    requests.MeasurePeaks: _load_peaks_operations,
    **dict.fromkeys(
        (
            requests.Open,
            requests.Close,
            requests.Canary,
            requests.Trial,
            requests.Time,
            requests.Check,
            requests.TimeReference,
            requests.EvaluateMetrics,
        ),
        _load_bench_operations,
    ),
}

_NEEDED_FIRST: Mapping[str, tuple[type[requests.Request[Any, Any]], ...]] = {
    Role.INSPECT: (requests.Inspect,),
    Role.EXPLORE: (requests.Explore,),
    Role.COMPILE: (requests.Compile,),
    Role.BENCH: (requests.Prepare, requests.Open),
}
"""The requests whose operations a worker of each role imports ahead, before its first request arrives."""


def main(argv: list[str]) -> int:
    """Serve requests until the daemon closes the pipe or dies; return the exit code.

    Args:
        argv: the worker's role, the descriptors to read requests from and to write answers to, the daemon's process id
            and this machine's :class:`Places`; after a restart also the request to carry on with.
    """
    start = ProcessStart.read_this_process()
    (role, *numbers, places_argument), began, pending = (
        argv[:5],
        find_start_time(argv[5:]),
        read_resumed_request(argv[5:]),
    )
    read_fd, write_fd, daemon_pid = map(int, numbers)
    _tie_to_daemon(daemon_pid)
    # User code, and the processes that it starts, must not see the journal.
    journal = Journal(int(os.environ.pop(JOURNAL_VARIABLE)))
    descriptors = (read_fd, write_fd, journal.descriptor)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    reply = Reply(write_fd, journal)
    places = Places.from_argument(places_argument)
    _begin_recording(places, began)
    operations = Operations(places)
    if pending is None:
        reply.send_answer(replies.Done(replies.Ready(os.getpid())))
    ACCESSES.prove_observed()
    if pending is None:
        operations.import_for_role(role)
    for request in _read_requests(read_fd, pending):
        try:
            answer = _answer_request(request, operations, reply)
        except MemoryError:
            return frames.OUT_OF_MEMORY
        except FreshProcessNeeded as needed:
            flush_output()
            reply.announce_restart(needed.reason)
            assert not isinstance(request, InvalidMessage)
            start.restart_process(needed.rest or request, descriptors)
        flush_output()
        try:
            reply.send_answer(answer)
        except (frames.FrameError, ValueError, TypeError) as error:
            # The answer is too large, or holds text that is not Unicode. Only this request fails.
            cause = RuntimeError(f"the answer cannot be sent: {error!r}")
            reply.send_answer(replies.Failed(describe_failure(cause)))
    return 0


def _tie_to_daemon(daemon_pid: int) -> None:
    """End with the daemon, be the first victim when memory runs out, and leave no core dump."""
    parent.die_with_parent(daemon_pid)
    # The memory of detached children counts as this worker's. When the worker is gone, they become the daemon's.
    parent.adopt_descendants()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _prefer_as_oom_victim()


def _begin_recording(places: Places, began: float) -> None:
    """Record from now on what user code imports and reads, other than files of ktuned's own."""
    OBSERVER.may_restart = True
    OBSERVER.trust = Trust(places.trusted)
    ACCESSES.own_directories = tuple(filter(None, (places.artifacts, places.expected, os.environ.get("TMPDIR"))))
    ACCESSES.start_recording(began)


def _answer_request(
    request: requests.Request[Any, Any] | InvalidMessage, operations: Operations, reply: Reply
) -> replies.Answer:
    """Carry out a request; return its reply, or its failure.

    Raises:
        FreshProcessNeeded: this process cannot carry it out.
        MemoryError: the process has run out of memory.
    """
    try:
        if isinstance(request, InvalidMessage):
            raise request
        reply.begin_request(request.first_phase)
        return replies.Done(operations.carry_out_request(request, reply))
    except (FreshProcessNeeded, MemoryError):
        raise
    except BaseException as error:
        # User code may raise anything; its SystemExit must not end this process.
        return replies.Failed(describe_failure(error))


def run(argv: list[str]) -> NoReturn:
    """Run a worker process, and exit without the interpreter's shutdown.

    A shutdown runs the exit handlers of user code and waits for its threads. With torch loaded it takes seconds, so
    that an exit looks like a hang; with a stuck thread it never ends.
    """
    code = 1
    try:
        code = main(argv)
    except BaseException:
        traceback.print_exc()
    finally:
        flush_output()
        os._exit(code)
