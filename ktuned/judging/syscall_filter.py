"""Refuses system calls to the calling process for ever, by seccomp (seccomp(2)): the innermost part of the sandbox.

A candidate computes, in threads of one process. So everything is refused by which a process reaches beyond itself:

- other processes: to start one, to signal, trace, read or reschedule one;
- sockets, and the ways around a filter (``io_uring``, the numbers of other architectures);
- timers that interrupt, because they cannot be seen from outside (``setitimer``);
- what would keep the judge from looking: other limits, another parent-death signal, not being dumpable.

A refused call fails with ``EPERM``. ``clone3`` fails with ``ENOSYS``: its flags lie in memory, which a filter cannot
read, and C libraries then use ``clone``. The numbers are those of x86-64 and ARM64; elsewhere there is no filter.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Iterator

_NUMBERS = {"x86_64": 0, "aarch64": 1}
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_X32 = 0x40000000

_REFUSED: dict[str, tuple[int | None, int | None]] = {
    # Processes.
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "execveat": (322, 281),
    "tkill": (200, 130),
    "pidfd_send_signal": (424, 424),
    "pidfd_getfd": (438, 438),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    # Sockets, and other ways to exchange messages.
    "socket": (41, 198),
    "socketpair": (53, 199),
    "connect": (42, 203),
    "io_uring_setup": (425, 425),
    "mq_open": (240, 180),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    # The kernel's own interfaces.
    "userfaultfd": (323, 282),
    "perf_event_open": (298, 241),
    "bpf": (321, 280),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "mount": (165, 40),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_by_handle_at": (304, 265),
    # Timers.
    "setitimer": (38, 103),
    "alarm": (37, None),
    "timer_create": (222, 107),
}
"""Refused whatever the arguments are, by number on x86-64 and ARM64."""

_REFUSED_WITHOUT_MOUNTS: dict[str, tuple[int | None, int | None]] = {
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "setxattrat": (463, 463),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
    "truncate": (76, 45),
}
"""Changes to files that Landlock does not refuse. They are not needed where the mounts are read-only."""

_OWN: dict[str, tuple[int, int]] = {
    "kill": (62, 129),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "prlimit64": (302, 261),
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
}
"""Allowed if the first argument is this process; or 0, except for ``kill``, which then means its group."""

_CLONE = (56, 220)
_CLONE3 = (435, 435)
_PRCTL = (157, 167)
_CLONE_THREAD = 0x10000
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_REFUSED_OPTIONS = (_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE)

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_ALLOW = 0x7FFF0000
_FAIL = 0x00050000
_SECCOMP_SET_MODE_FILTER = 1
_ALL_THREADS, _LEAVE_SPECULATION = 1, 4
"""Flags. Without the second, Linux before 5.16 slows down the process's loads (``spec_store_bypass``)."""


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def refuse_system_calls(*, has_own_mounts: bool) -> None:
    """Refuse the calls for all threads of this process, now and for ever.

    Args:
        has_own_mounts: whether all that this process may not write is mounted read-only.

    Raises:
        OSError: this system or architecture has no such filter.
    """
    machine = platform.machine()
    if machine not in _NUMBERS:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    code = b"".join(_make_program(machine, os.getpid(), has_own_mounts=has_own_mounts))
    program = _Program(len(code) // 8, code)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.syscall(
        _SECCOMP[machine], _SECCOMP_SET_MODE_FILTER, _ALL_THREADS | _LEAVE_SPECULATION, ctypes.byref(program)
    ):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _make_program(machine: str, pid: int, *, has_own_mounts: bool) -> Iterator[bytes]:
    """Yield the filter's instructions. Each call's part returns, so the next part still has the number loaded."""
    column = _NUMBERS[machine]
    fail, absent = _FAIL | errno.EPERM, _FAIL | errno.ENOSYS
    argument = _FIRST_ARGUMENT_AT + (0 if sys.byteorder == "little" else 4)
    yield _encode(_LOAD, _ARCHITECTURE_AT)
    yield _encode(_EQUAL, _ARCHITECTURES[machine], if_true=1)
    yield _encode(_RETURN, absent)
    yield _encode(_LOAD, _NUMBER_AT)
    if machine == "x86_64":
        yield _encode(_AT_LEAST, _X32, if_false=1)
        yield _encode(_RETURN, absent)
    refused = _REFUSED if has_own_mounts else _REFUSED | _REFUSED_WITHOUT_MOUNTS
    for numbers in refused.values():
        if (number := numbers[column]) is not None:
            yield _encode(_EQUAL, number, if_false=1)
            yield _encode(_RETURN, fail)
    yield _encode(_EQUAL, _CLONE3[column], if_false=1)
    yield _encode(_RETURN, absent)
    yield _encode(_EQUAL, _CLONE[column], if_false=4)
    yield _encode(_LOAD, argument)
    yield _encode(_ANY_BIT, _CLONE_THREAD, if_true=1)
    yield _encode(_RETURN, fail)
    yield _encode(_RETURN, _ALLOW)
    yield from _check_argument(_PRCTL[column], argument, _REFUSED_OPTIONS, if_equal=fail, otherwise=_ALLOW)
    for name, numbers in _OWN.items():
        own = (pid,) if name == "kill" else (pid, 0)
        yield from _check_argument(numbers[column], argument, own, if_equal=_ALLOW, otherwise=fail)
    yield _encode(_RETURN, _ALLOW)


def _check_argument(
    number: int, argument: int, values: tuple[int, ...], *, if_equal: int, otherwise: int
) -> Iterator[bytes]:
    yield _encode(_EQUAL, number, if_false=len(values) + 3)
    yield _encode(_LOAD, argument)
    for left, value in zip(range(len(values), 0, -1), values, strict=True):
        yield _encode(_EQUAL, value, if_true=left)
    yield _encode(_RETURN, otherwise)
    yield _encode(_RETURN, if_equal)


def _encode(code: int, value: int, *, if_true: int = 0, if_false: int = 0) -> bytes:
    """Return one instruction of the packet filter; a jump skips that many instructions."""
    return struct.pack("=HBBI", code, if_true, if_false, value)
