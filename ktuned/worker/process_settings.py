"""The settings of a process that a config may change, and how each is read and written.

Some are settings of one thread: the floating-point control is that of the thread that launches.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

TASKS = "/proc/self/task"

_libc = ctypes.CDLL(None, use_errno=True)
_libc.setenv.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int)
_libc.fegetenv.argtypes = _libc.fesetenv.argtypes = (ctypes.c_void_p,)

_FENV_BYTES = 64
"""More than any ``fenv_t``: 32 bytes on x86-64, 8 on ARM64."""

_FENV_CONTROL: Mapping[str, tuple[tuple[int, int], ...]] = {
    "x86_64": ((0, 0xFF), (1, 0xFF), (28, 0xC0), (29, 0xFF)),
    "aarch64": ((0, 0xFF), (1, 0xFF), (2, 0xFF), (3, 0xFF)),
}
"""Bytes of ``fenv_t``, with the bits in them that control arithmetic: the x87 control word and MXCSR, or FPCR. Other
bits are flags, which any operation sets."""

_LIMITS = tuple(
    sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")} - {resource.RLIMIT_CORE})
)
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_PR_SET_TIMERSLACK, _PR_GET_TIMERSLACK = 29, 30


class Setting(NamedTuple):
    """A piece of a process's state that can be read and written.

    Attributes:
        name: what messages call it.
        read: returns its value.
        write: sets it to a value that was read.
        is_files_choice: whether a kernel file's Python may choose it for all its configs. It may also choose the
            environment and the settings of torch.
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]
    is_files_choice: bool = False


def read_arithmetic() -> bytes:
    """Return this thread's floating-point environment, without the flags that operations set."""
    now = (ctypes.c_ubyte * _FENV_BYTES)()
    _libc.fegetenv(now)
    control = _FENV_CONTROL.get(platform.machine())
    if control is None:
        return bytes(now)
    kept = bytearray(_FENV_BYTES)
    for place, bits in control:
        kept[place] = now[place] & bits
    return bytes(kept)


def write_arithmetic(wanted: bytes) -> None:
    """Set this thread's floating-point control, and leave its flags as they are."""
    now = (ctypes.c_ubyte * _FENV_BYTES)()
    _libc.fegetenv(now)
    for place, bits in _FENV_CONTROL.get(platform.machine(), tuple((place, 0xFF) for place in range(_FENV_BYTES))):
        now[place] = (now[place] & ~bits & 0xFF) | (wanted[place] & bits)
    _libc.fesetenv(now)


def _read_environment() -> tuple[tuple[bytes, ...], dict[bytes, bytes]]:
    """Return C's environment, and Python's copy of it."""
    entries = []
    pointers = ctypes.POINTER(ctypes.c_char_p).in_dll(_libc, "environ")
    place = 0
    # After `clearenv` the pointer is null.
    while ctypes.cast(pointers, ctypes.c_void_p).value and (entry := pointers[place]) is not None:
        entries.append(entry)
        place += 1
    return tuple(sorted(entries)), dict(os.environb)


def _write_environment(wanted: tuple[tuple[bytes, ...], dict[bytes, bytes]]) -> None:
    entries, seen = wanted
    os.environb.clear()
    os.environb.update(seen)
    _libc.clearenv()
    for entry in entries:
        name, _, value = entry.partition(b"=")
        _libc.setenv(name, value, 1)


def list_threads() -> list[str]:
    """Return the ids of this process's threads; none if the system does not list them."""
    try:
        return os.listdir(TASKS)
    except OSError:
        return []


def _read_affinities() -> dict[int, frozenset[int]]:
    affinities = {}
    for thread in map(int, list_threads()):
        with suppress(OSError):
            affinities[thread] = frozenset(os.sched_getaffinity(thread))
    return affinities


class _Affinities(dict[int, frozenset[int]]):
    """Affinities by thread. Two are equal if they agree on the threads that both contain; threads come and go."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, dict) and all(
            other[thread] == cores for thread, cores in self.items() if thread in other
        )

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None


def _write_affinities(wanted: Mapping[int, frozenset[int]]) -> None:
    for thread, cores in wanted.items():
        with suppress(OSError):
            os.sched_setaffinity(thread, cores)


def _read_umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _read_limits() -> tuple[tuple[int, int], ...]:
    return tuple(resource.getrlimit(limit) for limit in _LIMITS)


def _write_limits(wanted: tuple[tuple[int, int], ...]) -> None:
    for limit, pair in zip(_LIMITS, wanted, strict=True):
        if resource.getrlimit(limit) != pair:
            resource.setrlimit(limit, pair)


def list_running_interval_timers() -> tuple[int, ...]:
    """Return the timers of ``setitimer`` that run."""
    return tuple(timer for timer in _TIMERS if signal.getitimer(timer)[0] > 0)


def _stop_new_timers(wanted: tuple[int, ...]) -> None:
    for timer in {*_TIMERS} - {*wanted}:
        signal.setitimer(timer, 0)


def _read_working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""


def _read_torch_settings() -> tuple[Any, ...]:
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "get_num_threads"):
        return ()
    return (
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
    )


def _write_torch_settings(wanted: tuple[Any, ...]) -> None:
    torch = sys.modules.get("torch")
    if torch is None or not wanted:
        return
    threads, dtype, grad, deterministic, precision = wanted
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)
    torch.set_grad_enabled(grad)
    torch.use_deterministic_algorithms(deterministic)
    torch.set_float32_matmul_precision(precision)


ARITHMETIC = Setting("floating-point control", read_arithmetic, write_arithmetic, is_files_choice=True)

TORCH = Setting("settings of torch", _read_torch_settings, _write_torch_settings)

TIMERS = Setting("timers", list_running_interval_timers, _stop_new_timers)

SETTINGS = (
    ARITHMETIC,
    Setting("environment", _read_environment, _write_environment),
    Setting("affinity", lambda: _Affinities(_read_affinities()), _write_affinities),
    Setting(
        "niceness",
        lambda: os.getpriority(os.PRIO_PROCESS, 0),
        lambda wanted: os.setpriority(os.PRIO_PROCESS, 0, wanted),
        is_files_choice=True,
    ),
    Setting(
        "scheduling policy",
        lambda: (os.sched_getscheduler(0), os.sched_getparam(0).sched_priority),
        lambda wanted: os.sched_setscheduler(0, wanted[0], os.sched_param(wanted[1])),
        is_files_choice=True,
    ),
    Setting("working directory", _read_working_directory, os.chdir),
    Setting("umask", _read_umask, os.umask, is_files_choice=True),
    Setting(
        "signal mask",
        lambda: frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        lambda wanted: signal.pthread_sigmask(signal.SIG_SETMASK, wanted),
        is_files_choice=True,
    ),
    TIMERS,
    Setting("limits", _read_limits, _write_limits),
    Setting(
        "timer slack",
        lambda: _libc.prctl(_PR_GET_TIMERSLACK, 0, 0, 0, 0),
        lambda wanted: _libc.prctl(_PR_SET_TIMERSLACK, wanted, 0, 0, 0),
        is_files_choice=True,
    ),
    TORCH,
)
