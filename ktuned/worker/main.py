"""A worker's loop: reads one request, does it, answers; one request at a time, until the pipe closes.

Answers to a request are frames of one key each: ``phase`` (which deadline runs now), ``item`` (one of several
results, each of which has the whole deadline), and last ``done`` or ``failed``. The first phase is the asker's to say.
A worker is never asked to stop: the daemon kills it, at any moment.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from ktuned.backends import Registry
from ktuned.ipc import frames
from ktuned.worker.failures import describe_failure
from ktuned.worker.reply import Reply

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_READ_BYTES = 1 << 16
_OOM_SCORE = 800

Operation = Callable[[dict[str, Any], Reply], dict[str, Any]]


def _requests(read_fd: int) -> Iterator[dict[str, Any]]:
    decoder = frames.Decoder()
    while data := os.read(read_fd, _READ_BYTES):
        yield from decoder.feed(data)


def _die_with(daemon_pid: int) -> None:
    """Have the kernel kill this process when the daemon dies, however it dies, and make what detaches itself ours."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # What stays below this process counts as its memory, and is the daemon's when it is gone.
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if os.getppid() != daemon_pid:
        # The daemon died before the kernel was told.
        os._exit(1)


def _be_the_first_to_go() -> None:
    """When the machine runs out of memory, let the kernel choose a worker, and not the user's editor."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as stream:
        stream.write(str(_OOM_SCORE))


def _flush() -> None:
    """Have what user code printed sent on; its streams are what it made of them, and may be none any more."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _operations() -> dict[str, Operation]:
    # Imported after the process is tied to its daemon; each is light, and imports what it needs when it is asked.
    from ktuned.worker.bench import Bench
    from ktuned.worker.compile import compile_units
    from ktuned.worker.contention import gpu_users
    from ktuned.worker.inspect import Inspector
    from ktuned.worker.probe import prepare, probe

    registry = Registry()
    inspector = Inspector(registry)
    bench = Bench(registry)
    return {
        "prepare": lambda request, reply: prepare(registry, request),
        "probe": lambda request, reply: probe(registry),
        "gpu_users": lambda request, reply: gpu_users(request["ours"]),
        "inspect": inspector.inspect,
        "explore": inspector.explore,
        "ask": inspector.ask,
        "admits": inspector.admits,
        "compile": lambda request, reply: compile_units(registry, request, reply),
        "open": bench.open,
        "canary": bench.canary,
        "trial": bench.trial,
        "time": bench.time,
        "time_reference": bench.time_reference,
    }


def main(argv: list[str]) -> int:
    """Serve requests from ``argv[0]`` (a file descriptor) on ``argv[1]`` until the daemon closes or dies."""
    read_fd, write_fd, daemon_pid = (int(word) for word in argv)
    _die_with(daemon_pid)
    for descriptor in (read_fd, write_fd):
        os.set_inheritable(descriptor, False)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _be_the_first_to_go()
    # Importing a kernel file must not write beside it: that would be a change that the daemon watches.
    sys.dont_write_bytecode = True
    reply = Reply(write_fd)
    operations = _operations()
    reply.send({"done": {"pid": os.getpid()}})
    for request in _requests(read_fd):
        try:
            answer = {"done": operations[request["op"]](request, reply)}
        except MemoryError:
            return frames.OUT_OF_MEMORY
        except BaseException as error:
            # User code raises what it likes: a SystemExit of its own is no reason for this process to end.
            answer = {"failed": describe_failure(error)}
        _flush()
        try:
            reply.send(answer)
        except (frames.FrameError, ValueError, TypeError) as error:
            # Too large, or words that are no Unicode: who asked is told so, and asks on.
            reply.send({"failed": describe_failure(RuntimeError(f"an answer that cannot be sent: {error!r}"))})
    return 0


def run(argv: list[str]) -> NoReturn:
    """Be a worker process to its end, which comes at once.

    The interpreter's own end runs what user code has registered for it, and waits for threads: with torch loaded for
    seconds, so that a death would look like a hang, or for ever.
    """
    code = 1
    try:
        code = main(argv)
    except BaseException:
        traceback.print_exc()
    finally:
        _flush()
        os._exit(code)
