"""Confines the calling process before it runs a candidate, which is not trusted.

:func:`enter_sandbox` uses what the system allows, and says what nothing enforces. It needs no program and no privilege.

===================  ===================  ========================  ============================================
a candidate cannot   namespaces           Landlock                  filter of system calls
===================  ===================  ========================  ============================================
use the network      no interface         (TCP, since Linux 6.7)    no socket
write elsewhere      read-only mounts     rights of files           metadata, if the mounts are not read-only
read what is hidden  empty mounts         rights of files
see other processes  its own ``/proc``    ``/proc/self`` alone      no signal, no trace
outlive its parent   they end with init                             no new process, no other parent-death signal
===================  ===================  ========================  ============================================

Landlock is used where namespaces are refused: by a container's seccomp profile, by ``max_user_namespaces``, by AppArmor
(the namespace is made, but its mounts are refused). The filter and the limits are always used.

With namespaces there are three processes. The caller of :func:`enter_sandbox` stays outside, waits, and ends as the
candidate ended, with the same signal. Its child is the ``init`` of the namespace. The candidate is the child of that:
signals such as ``SIGABRT`` are ignored if an ``init`` sends them to itself. Killing any of the three kills the
candidate.

The process must have one thread, because neither a user namespace nor Landlock applies to a thread that runs already.
A GPU's driver starts threads and makes sockets, so it is started between those layers and the filter, which applies to
all threads.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import stat
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple, NoReturn

from ktuned.judging.syscall_filter import refuse_system_calls

NAMESPACES, LANDLOCK, FILTER = "user namespaces", "Landlock", "seccomp"
LAYERS = frozenset({NAMESPACES, LANDLOCK, FILTER})

SCRATCH_BYTES = 1 << 30
"""Most that a candidate may write into its scratch directory, and into one file. It lies in memory."""

MEMORY_SHARE = 0.75
"""How much of the machine's memory a candidate may map to write: the rest keeps the judge and the daemon alive."""

MAX_DESCRIPTORS = 1024

_HIDDEN, _READABLE = "hidden", "readable"

_DEVICES = ("null", "zero", "full", "random", "urandom")
"""The devices of each candidate: others, such as disks, belong to root, and so would its candidate."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)

_CLONE_NEWNS, _CLONE_NEWIPC, _CLONE_NEWUSER = 0x20000, 0x8000000, 0x10000000
_CLONE_NEWPID, _CLONE_NEWNET = 0x20000000, 0x40000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT = 1, 2, 4, 8, 32
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_MOUNT_SETATTR = 442
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 4, 24, 38
_CAPABILITY_VERSION = 0x20080522

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIRECTORY, _TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14
_CONTROL_DEVICE = 1 << 15
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _CONTROL_DEVICE
_RIGHTS_BY_VERSION = (0, 13, 14, 15, 15, 16)
"""How many rights of files a version of Landlock knows."""

_TCP_RIGHTS = 0b11
_SCOPES = 0b11
_FIRST_WITH_TRUNCATE, _FIRST_WITH_TCP, _FIRST_WITH_SCOPES = 3, 4, 6


class Sandbox(NamedTuple):
    """What a candidate's process may reach. Paths are absolute; those that do not exist are ignored.

    Everything may be read that is not hidden, and nothing may be written but the scratch directory. Of two paths that
    contain each other the longer one decides.

    Attributes:
        parent: the process whose end is the candidate's end.
        scratch: an existing empty directory. It becomes ``TMPDIR`` and the working directory. With namespaces, what
            is written there is not seen outside.
        hidden: directories that look empty, or cannot be read: the daemon's runtime, state and cache directories.
        readable: directories in hidden ones that may be read: the project, the candidate's artifact. Its files may
            be put there later.
        descriptors: what stays open, besides standard output and error.
        devices: names of further files in ``/dev`` that it may use.
        layers: what may be used. Tests leave some out.
    """

    parent: int
    scratch: str
    hidden: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()
    descriptors: tuple[int, ...] = ()
    devices: tuple[str, ...] = ()
    layers: frozenset[str] = LAYERS


class Confinement(NamedTuple):
    """How the calling process is confined.

    Attributes:
        pid: the candidate's process, as the processes outside see it.
        not_enforced: a sentence for each thing that the candidate is free to do.
    """

    pid: int
    not_enforced: tuple[str, ...]


def enter_sandbox(sandbox: Sandbox, start_driver: Callable[[], object] = int) -> Confinement:
    """Confine this process for ever, as far as the system allows. Returns in the process that is the candidate's.

    ``start_driver`` is called before system calls are refused, and may start threads.

    Raises:
        RuntimeError: this process has other threads.
    """
    if len(os.listdir("/proc/self/task")) > 1:
        raise RuntimeError("a process enters a sandbox before it starts threads")
    _close_descriptors(sandbox.descriptors)
    _die_with(sandbox.parent)
    views = _find_views(sandbox)
    refused: dict[str, str] = {}
    has_own_mounts = False
    pid = os.getpid()

    if NAMESPACES not in sandbox.layers:
        refused[NAMESPACES] = "not used"
    else:
        try:
            _make_namespaces()
        except OSError as error:
            refused[NAMESPACES] = _explain(error)
        else:
            # From here on, this code runs in the candidate's process.
            pid = _become_init_and_candidate(sandbox.descriptors)
            try:
                _hide_with_mounts(views, sandbox)
                has_own_mounts = True
            except OSError as error:
                refused[NAMESPACES] = _explain(error)

    version = 0
    if not has_own_mounts:
        if LANDLOCK not in sandbox.layers:
            refused[LANDLOCK] = "not used"
        else:
            try:
                version = _restrict_files(views, sandbox)
            except OSError as error:
                refused[LANDLOCK] = _explain(error)

    os.makedirs(sandbox.scratch, exist_ok=True)
    os.chdir(sandbox.scratch)
    os.environ["TMPDIR"] = sandbox.scratch
    _set_limits()
    _drop_capabilities()
    if pid == os.getpid():
        # There is no init of a namespace. Linux clears the signal when a process gives up capabilities.
        _die_with(sandbox.parent)
    start_driver()
    if FILTER not in sandbox.layers:
        refused[FILTER] = "not used"
    else:
        try:
            refuse_system_calls(has_own_mounts=has_own_mounts)
        except OSError as error:
            refused[FILTER] = _explain(error)
    return Confinement(pid, tuple(_find_gaps(refused, version, has_own_mounts=has_own_mounts)))


def _find_gaps(refused: Mapping[str, str], version: int, *, has_own_mounts: bool) -> Iterator[str]:
    """Yield what the refused layers leave open, with the reasons."""
    has_filter = FILTER not in refused
    files = NAMESPACES, LANDLOCK
    if not has_own_mounts and not version:
        why = _list_reasons(refused, files)
        yield f"writes outside the scratch directory were possible ({why})"
        yield f"the daemon's files and its store could be read ({why})"
        yield f"other processes, and the memory of the judge, could be seen ({why})"
    elif not has_own_mounts and version < _FIRST_WITH_TRUNCATE:
        yield f"files outside the scratch directory could be emptied ({_list_reasons(refused, files)})"
    if not has_filter:
        why = _list_reasons(refused, (NAMESPACES, FILTER))
        if not has_own_mounts:
            yield f"the network and the daemon's socket could be reached ({why})"
            yield f"processes could be left behind ({why})"
        else:
            yield f"processes and timers could be started ({_list_reasons(refused, (FILTER,))})"


def _list_reasons(refused: Mapping[str, str], layers: tuple[str, ...]) -> str:
    return ", ".join(f"{layer}: {refused[layer]}" for layer in layers if layer in refused)


def _explain(error: OSError) -> str:
    return "this system has none" if error.errno in {errno.ENOSYS, errno.EOPNOTSUPP} else os.strerror(error.errno or 0)


def _check(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


# Processes.


def _close_descriptors(kept: tuple[int, ...]) -> None:
    """Close what the judge may have left open. If standard input is not kept, it becomes ``/dev/null``."""
    if 0 not in kept:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2 and descriptor not in kept:
            with suppress(OSError):
                os.close(descriptor)


def _die_with(parent: int) -> None:
    """Have this process killed when its parent ends; end at once if it has ended already."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _become_init_and_candidate(descriptors: tuple[int, ...]) -> int:
    """Split into three processes, of which the last returns; return its number, as the processes outside see it."""
    outer = os.getpid()
    status_reader, status_writer = os.pipe()
    init = os.fork()
    if init:
        os.close(status_writer)
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        _wait_outside(init, status_reader, descriptors)
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.close(status_reader)
    # The old /proc knows this process by the numbers outside. Its parent has ended if that has changed.
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as stream:
        if int(stream.read().rpartition(")")[2].split()[1]) != outer:
            os._exit(1)
    candidate = os.fork()
    if candidate:
        _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
        _wait_as_init(candidate, status_writer)
    os.close(status_writer)
    return int(os.readlink("/proc/self"))


def _wait_outside(init: int, status_reader: int, descriptors: tuple[int, ...]) -> NoReturn:
    """Wait for the namespace's end, and end as the candidate has ended."""
    # The judge sees the end of its pipes when the candidate ends, not when this process does.
    for descriptor in {0, *descriptors}:
        os.close(descriptor)
    try:
        os.waitpid(init, 0)
        found = os.read(status_reader, 4)
        status = int.from_bytes(found, "little") if found else signal.SIGKILL
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.signal(number, signal.SIG_DFL) if number != signal.SIGKILL else None
            os.kill(os.getpid(), number)
        os._exit(os.waitstatus_to_exitcode(status))
    finally:
        os._exit(1)


def _wait_as_init(candidate: int, status_writer: int) -> NoReturn:
    """Reap what ends, until the candidate does. The kernel kills what is left in the namespace when init ends."""
    try:
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            if descriptor != status_writer:
                with suppress(OSError):
                    os.close(descriptor)
        while True:
            pid, status = os.waitpid(-1, 0)
            if pid == candidate:
                os.write(status_writer, status.to_bytes(4, "little"))
                break
    finally:
        os._exit(0)


def _set_limits() -> None:
    memory = int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * MEMORY_SHARE)
    for limit, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, SCRATCH_BYTES),
        (resource.RLIMIT_NOFILE, MAX_DESCRIPTORS),
        (resource.RLIMIT_DATA, memory),
    ):
        hard = resource.getrlimit(limit)[1]
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (bound, bound))


def _drop_capabilities() -> None:
    """Give up all capabilities: those of the user namespace, or root's own."""
    for capability in range(64):
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0):
            break
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    _libc.capset(header, bytes(24))
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


# Files.


def _find_views(sandbox: Sandbox) -> dict[str, str]:
    """Return how each named directory is to look, the outer ones first; without those that look so anyway."""
    named = {os.path.realpath(path): _HIDDEN for path in sandbox.hidden}
    named |= {os.path.realpath(path): _READABLE for path in sandbox.readable}
    views: dict[str, str] = {}
    for path in sorted(filter(os.path.isdir, named), key=lambda path: path.count("/")):
        around = [outer for outer in views if path.startswith(outer.rstrip("/") + "/")]
        if named[path] != (views[around[-1]] if around else _READABLE):
            views[path] = named[path]
    return views


def _make_namespaces() -> None:
    """Leave the namespaces of this process. The next process that it forks is the init of a new one."""
    user, group = os.geteuid(), os.getegid()
    _check(_libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS | _CLONE_NEWPID | _CLONE_NEWNET | _CLONE_NEWIPC))
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with suppress(OSError), open(f"/proc/self/{name}", "w", encoding="utf-8") as stream:
            stream.write(text)


def _hide_with_mounts(views: Mapping[str, str], sandbox: Sandbox) -> None:
    """Mount what hides, make everything read-only, and mount what may be written."""
    # This comes first, because systems that refuse mounts refuse one of these two. Nothing has changed then.
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    # A directory in a hidden one is opened before that is hidden, and mounted there again.
    opened = {path: os.open(path, os.O_PATH | os.O_DIRECTORY) for path, view in views.items() if view == _READABLE}
    scratch, names = sandbox.scratch, (*_DEVICES, *sandbox.devices)
    devices = {name: os.open(f"/dev/{name}", os.O_PATH) for name in names if os.path.exists(f"/dev/{name}")}
    for path, view in views.items():
        # Inside a hidden directory it is not there any more.
        os.makedirs(path, exist_ok=True)
        if view == _HIDDEN:
            _mount("tmpfs", path, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=0755,size=1m")
        else:
            _mount(f"/proc/self/fd/{opened[path]}", path, None, _MS_BIND | _MS_REC)
    _mount("tmpfs", "/dev", "tmpfs", _MS_NOSUID, "mode=0755,size=1m")
    for name, descriptor in devices.items():
        os.close(os.open(f"/dev/{name}", os.O_CREAT | os.O_WRONLY, 0o666))
        _mount(f"/proc/self/fd/{descriptor}", f"/dev/{name}", None, _MS_BIND)
    for name, target in (("fd", "/proc/self/fd"), ("stdout", "/proc/self/fd/1"), ("stderr", "/proc/self/fd/2")):
        os.symlink(target, f"/dev/{name}")
    os.mkdir("/dev/shm")
    for descriptor in (*opened.values(), *devices.values()):
        os.close(descriptor)
    os.makedirs(scratch, exist_ok=True)
    _make_read_only()
    if sandbox.devices:
        # A GPU's driver does not start unless it may name its threads.
        flags = _MS_BIND | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
        _mount("/proc/self/task", "/proc/self/task", None, _MS_BIND)
        _mount(None, "/proc/self/task", None, _MS_REMOUNT | flags)
    # Libraries make shared memory in /dev/shm.
    _mount("tmpfs", scratch, "tmpfs", _MS_NOSUID | _MS_NODEV, f"mode=0700,size={SCRATCH_BYTES}")
    _mount(scratch, "/dev/shm", None, _MS_BIND)


def _make_read_only() -> None:
    """Make all mounts read-only. Linux before 5.12 cannot, and the sandbox then counts as one without mounts."""
    attributes = struct.pack("=QQQQ", _MS_RDONLY, 0, 0, 0)
    flags, size = ctypes.c_uint(_AT_RECURSIVE), ctypes.c_size_t(len(attributes))
    _check(_libc.syscall(_MOUNT_SETATTR, _AT_FDCWD, b"/", flags, attributes, size))


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    arguments = (None if text is None else os.fsencode(text) for text in (source, target, kind))
    _check(_libc.mount(*arguments, flags, None if options is None else options.encode()))


def _restrict_files(views: Mapping[str, str], sandbox: Sandbox) -> int:
    """Allow reading what is not hidden, and writing the scratch directory; return the version of Landlock."""
    version = _check(_libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION_FLAG))
    all_rights = (1 << _RIGHTS_BY_VERSION[min(version, len(_RIGHTS_BY_VERSION) - 1)]) - 1
    handled = struct.pack("=Q", all_rights)
    if version >= _FIRST_WITH_TCP:
        handled += struct.pack("=Q", _TCP_RIGHTS)
    if version >= _FIRST_WITH_SCOPES:
        handled += struct.pack("=Q", _SCOPES)
    ruleset = _check(_libc.syscall(_CREATE_RULESET, handled, ctypes.c_size_t(len(handled)), 0))
    reading = _EXECUTE | _READ_FILE | _READ_DIRECTORY
    for path in _list_readable("/", _READABLE, {**views, "/dev": _HIDDEN, "/proc": _HIDDEN}):
        _allow(ruleset, path, reading)
    for name in (*_DEVICES, *sandbox.devices):
        _allow(ruleset, f"/dev/{name}", all_rights & (_READ_FILE | _WRITE_FILE | _CONTROL_DEVICE))
    for name in os.listdir("/proc"):
        if not name.isdecimal() and not os.path.islink(f"/proc/{name}"):
            _allow(ruleset, f"/proc/{name}", reading)
    # Linux may forget which directory of /proc this was, unless it stays open.
    os.open("/proc/self", os.O_PATH)
    _allow(ruleset, "/proc/self", reading)
    if sandbox.devices:
        # A GPU's driver does not start unless it may name its threads.
        os.open("/proc/self/task", os.O_PATH)
        _allow(ruleset, "/proc/self/task", reading | _WRITE_FILE)
    _allow(ruleset, sandbox.scratch, all_rights)
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _check(_libc.syscall(_RESTRICT_SELF, ruleset, 0))
    os.close(ruleset)
    return version


def _list_readable(path: str, view: str, views: Mapping[str, str]) -> Iterator[str]:
    """Yield paths that contain all that may be read below ``path``, because Landlock's rules allow and never refuse.

    A directory that contains a hidden one is not yielded, but what it contains now.
    """
    view = views.get(path, view)
    inside = path.rstrip("/") + "/"
    if not any(other.startswith(inside) for other in views):
        if view == _READABLE:
            yield path
        return
    # Users may not list each directory on the way to their own, such as /home.
    names = {other[len(inside) :].partition("/")[0] for other in views if other.startswith(inside)}
    with suppress(OSError):
        names.update(os.listdir(path))
    for name in names:
        if not os.path.islink(inside + name):
            yield from _list_readable(inside + name, view, views)


def _allow(ruleset: int, path: str, rights: int) -> None:
    with suppress(OSError):
        descriptor = os.open(path, os.O_PATH)
        try:
            if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
                rights &= _FILE_RIGHTS
            rule = struct.pack("=Qi", rights, descriptor)
            _check(_libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0))
        finally:
            os.close(descriptor)
