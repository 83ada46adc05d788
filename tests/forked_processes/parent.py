"""Parent of daemons, of programs, or of workers of one role: it does their imports, then forks one process for each
request.

Arguments are a socket's descriptor and a role (or :data:`DAEMON` or :data:`TRITON_PROGRAM`). Padding in its environment
reserves room for a forked process's own environment, as ``/proc`` shows it.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import gc
import importlib
import mmap
import os
import select
import signal
import socket
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import msgpack

DAEMON = "daemon"
"""Takes the place of a role: a parent of daemons."""

TRITON_PROGRAM = "program"
"""Takes the place of a role: a parent of programs that use torch and Triton."""

LOG_VARIABLE = "KTUNED_OBSERVER"
PARENT_LOG = "parent-of-workers"
"""The name of the log of a parent of workers; each worker has a log of its own."""

MAX_MESSAGE = 1 << 18
MAX_DESCRIPTORS = 16

_MAP_FIXED = 0x10

_ABOVE = 400
"""Descriptors are moved above this number first, so that the numbers that a worker expects are free."""


def main(control: socket.socket, role: str) -> None:
    """Fork a process for each request and answer with its id; answer ``wait`` with an ended process's exit code."""
    match role:
        case "daemon":
            run = _prepare_daemon()
        case "program":
            run = _prepare_program()
        case _:
            run = _prepare_worker(role)
    gc.collect()
    gc.freeze()
    _serve_requests(control, run)


def _prepare_daemon() -> Callable[[], NoReturn]:
    repository = str(Path(sys.argv[1]).parents[2])
    sys.path.insert(0, repository)
    from tests.forked_processes.daemon import run_command

    sys.path.remove(repository)

    def run() -> NoReturn:
        # -m ktuned start --foreground
        sys.argv = ["ktuned", *sys.orig_argv[3:]]
        code = 1
        try:
            code = run_command(sys.argv[1:])
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    return run


def _prepare_program() -> Callable[[], NoReturn]:
    import torch  # noqa: F401
    import triton.runtime  # noqa: F401

    def run() -> NoReturn:
        # PYTHON PROGRAM ARGUMENT...
        sys.argv = sys.orig_argv[1:]
        file = sys.argv[0]
        sys.path.insert(0, str(Path(file).parent))
        program = sys.modules["__main__"] = types.ModuleType("__main__")
        program.__file__ = file
        exec(compile(Path(file).read_text(), file, "exec"), vars(program))
        sys.exit()

    return run


def _prepare_worker(role: str) -> Callable[[], NoReturn]:
    from ktuned.worker import imports

    imports.keep_bytecode(os.environ)
    import ktuned.worker.__main__ as program
    from ktuned.ipc import Places
    from ktuned.worker.main import Operations, run

    _look_up_installed_packages()
    Operations(Places({}, "", "")).import_for_role(role)
    if role == "inspect":
        _look_up_toolchains()
    if role == "bench" and "FAKE_TENSORS" in os.environ:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(os.environ["FAKE_TENSORS"])
    sys.modules["__main__"] = program

    def run_worker() -> NoReturn:
        # -P -m ktuned.worker ROLE READ_FD WRITE_FD DAEMON_PID PLACES: the daemon that it dies with is its parent.
        sys.orig_argv[7] = str(os.getppid())
        sys.argv = [str(Path(program.__file__ or "")), *sys.orig_argv[4:]]
        run(sys.argv[1:])

    return run_worker


def _look_up_installed_packages() -> None:
    """Look up plugins, and the distribution of each package, which takes a worker 0.1 s.
    Workers have the parent's path, and nothing is installed there meanwhile.
    """
    import functools
    import importlib.metadata

    from ktuned.dependencies.distributions import find_owners
    from ktuned.dependencies.origin import InstalledPlace, find_installed_place, prepare_origins

    importlib.metadata.entry_points = functools.cache(importlib.metadata.entry_points)  # type: ignore[assignment]
    prepare_origins()
    for installed_place in filter(None, (find_installed_place(f"{path}/x") for path in sys.path)):
        # All lists are read only for a package that no distribution names after itself.
        find_owners(InstalledPlace(installed_place.site, "no package"))


def _look_up_toolchains() -> None:
    """Import the backends and read their compilers, which takes a probe 0.3 s; digests are cached.
    With a GPU this is skipped: some fingerprints initialise its driver, which a forked process cannot use.
    """
    if os.path.exists("/dev/nvidiactl"):
        return
    from ktuned import search  # noqa: F401 - a probe imports it
    from ktuned.backends import Registry
    from ktuned.ipc import stamp

    registry = Registry()
    for name in registry.names:
        plugin = registry.find_distribution(name)
        # The tests' own backends read variables of the tests.
        if plugin is None or not Path(str(plugin.locate_file(""))).is_relative_to(sys.prefix):
            continue
        # A backend that fails here fails in the probe, too, which reports it.
        with contextlib.suppress(Exception):
            backend = registry.load(name)
            for path in backend.toolchain_files():
                stamp(path)
            backend.fingerprint()


def _serve_requests(control: socket.socket, run: Callable[[], NoReturn]) -> None:
    """Serve the tests' connection and those of daemons until the tests end; processes end with their connection."""
    pids_by_connection: dict[socket.socket, set[int]] = {control: set()}
    while True:
        ready, _, _ = select.select(list(pids_by_connection), [], [])
        for connection in ready:
            data, received = _receive_request(connection)
            if not data:
                _kill_processes(pids_by_connection.pop(connection))
                connection.close()
                if connection is control:
                    return
                continue
            message = msgpack.unpackb(data)
            if "connect" in message:
                pids_by_connection[socket.socket(fileno=received[0])] = set()
                answer = 0
            elif "wait" in message:
                answer = os.waitstatus_to_exitcode(os.waitpid(message["wait"], 0)[1])
                pids_by_connection[connection].remove(message["wait"])
            else:
                answer = _fork_process(connection, message, received, run)
                pids_by_connection[connection].add(answer)
            with contextlib.suppress(BrokenPipeError):
                connection.send(msgpack.packb(answer))


def _receive_request(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Return a request and its descriptors; empty bytes if the other side is gone."""
    try:
        data, ancillary, _, _ = connection.recvmsg(MAX_MESSAGE, socket.CMSG_SPACE(4 * MAX_DESCRIPTORS))
    except ConnectionResetError:
        return b"", []
    descriptors = array.array("i")
    for _, _, received in ancillary:
        descriptors.frombytes(received)
    return data, list(descriptors)


def _kill_processes(processes: set[int]) -> None:
    """Kill the processes of a connection that has ended, as the kernel does with a daemon's own workers."""
    for pid in processes:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _fork_process(
    control: socket.socket, message: dict[str, Any], descriptors: list[int], run: Callable[[], NoReturn]
) -> int:
    """Return the id of a process that leads its own session."""
    ready, has_session = os.pipe()
    pid = os.fork()
    if not pid:
        control.close()
        os.close(ready)
        os.setsid()
        os.close(has_session)
        _become_requested_process(message, descriptors)
        run()
    os.close(has_session)
    os.read(ready, 1)
    for descriptor in (ready, *descriptors):
        os.close(descriptor)
    return pid


def _become_requested_process(message: dict[str, Any], descriptors: list[int]) -> None:
    """Take the command, environment, directory and descriptors of a request."""
    import fcntl
    import tempfile

    from ktuned.dependencies import origin

    null = os.open(os.devnull, os.O_RDONLY)
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, _ABOVE) for descriptor in (null, *descriptors)]
    os.closerange(3, _ABOVE)
    for descriptor, number in zip(moved, (0, 1, 2, *message["numbers"]), strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(message["directory"])
    os.environ.clear()
    os.environ.update(message["environment"])
    _overwrite_proc_environment(message["environment"])
    # The parent has cached these for its own environment.
    tempfile.tempdir = None
    origin.list_cache_directories.cache_clear()
    origin.is_foreign.cache_clear()
    _switch_log(os.environ.get(LOG_VARIABLE))
    sys.orig_argv = message["command"]


def _switch_log(path: str | None) -> None:
    """Make the observer, which the parent has loaded, write to the worker's log.
    The observer is loaded twice, for libc's calls and for the loader; each copy has mapped the parent's log.
    """
    if path is None:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    descriptor = os.open(path, os.O_RDWR)
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(f"/{PARENT_LOG}"):
            start, end = (int(number, 16) for number in line.split()[0].split("-"))
            flags = mmap.MAP_SHARED | _MAP_FIXED
            mapped = libc.mmap(start, end - start, mmap.PROT_READ | mmap.PROT_WRITE, flags, descriptor, 0)
            assert mapped == start, os.strerror(ctypes.get_errno())
    os.close(descriptor)


def _overwrite_proc_environment(environment: dict[str, str]) -> None:
    """Overwrite the environment that ``/proc`` shows, which is the memory with which this process began."""
    start, end = map(int, Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[47:49])
    block = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items())
    if len(block) > end - start:
        raise RuntimeError(f"a worker's environment has {len(block)} bytes; there is room for {end - start}")
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, block, len(block))


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[3])), sys.argv[4])
