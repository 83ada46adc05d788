"""The state of a lane's process, restored around each config, so that no config affects the next one.

A lane's worker measures one config after another, because a process with torch or a GPU's context takes seconds to
start. Without care, a config's changes to its process would affect all later configs and their checks: a library that
is linked with ``-ffast-math`` sets flush-to-zero when it is loaded; a kernel calls ``omp_set_num_threads``,
``sched_setaffinity`` or ``setenv``; a thread that it has started keeps a core busy.

:class:`ProcessState` treats such state in one of three ways.

**Restored**: state that can be read and written. :meth:`ProcessState.take_baseline` reads it when a problem is opened,
after the kernel file's own Python, whose settings apply to all configs. It is restored before and after each config.

========================  =========================================================================================
floating-point control    rounding, flush-to-zero, exceptions that trap (``fesetenv``), of the thread that launches
OpenMP runtimes           threads, dynamic, levels; their pools end after each config (``omp_pause_resource_all``),
                          because a pool's threads have the floating-point control that they were started with
BLAS, torch               threads; torch's default dtype, grad mode, determinism, precision of products
scheduling                affinity of each thread, niceness, policy
environment               C's own, which Python does not see change, and ``os.environ``
the rest                  working directory, umask, signal mask, timers, limits, timer slack
========================  =========================================================================================

**The config's own**: state that its library changes when it is loaded. An application that loads the library gets the
same state, so the config is launched in it. It is read after loading (:meth:`ProcessState.learn_own_state`), and
written again whenever the config runs, because a library's constructor runs once per process, but finalists are
launched in turns. Checks never run in it (:meth:`ProcessState.use_known_arithmetic`).

**Found, but not undone**: threads that the config has left behind, libraries of the project that it has mapped (they
have data of their own), and state that could not be restored. :attr:`ProcessState.leftover` describes it, the batch
ends, and the lane takes a fresh worker. The same happens if a mapped file has changed on the disk
(:meth:`ProcessState.find_outdated_file`), because the loader would keep using the old content under that name.

Some mapped libraries are no reason for a fresh worker: installed ones (below the interpreter's prefixes or the system's
directories), and those that a compiler has made in the lane (in the worker's scratch directory, or a compiler's cache).
A first launch maps parts of a driver or a runtime that every fresh worker would map again, and the state in them that
configs are known to change is restored. Their files are compared with the disk like all others.

Changes to the data of libraries that were loaded before the first config, to file descriptors, and by ``mallopt`` are
not noticed. All of this costs some 0.4 ms per config.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import resource
import signal
import site
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from glob import glob
from typing import Any, NamedTuple

MAPS = "/proc/self/maps"
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

_OPENMP_PAUSE_HARD = 2
_OPENMP = re.compile(r"/lib(gomp|omp|iomp5)[^/]*\.so[^/]*$")
_BLAS = re.compile(r"/lib[^/]*(openblas|mkl_rt|blis)[^/]*\.so[^/]*$")
_BLAS_CALLS = (
    ("scipy_openblas_get_num_threads64_", "scipy_openblas_set_num_threads64_"),
    ("scipy_openblas_get_num_threads", "scipy_openblas_set_num_threads"),
    ("openblas_get_num_threads64_", "openblas_set_num_threads64_"),
    ("openblas_get_num_threads", "openblas_set_num_threads"),
    ("MKL_Get_Max_Threads", "MKL_Set_Num_Threads"),
    ("bli_thread_get_num_threads", "bli_thread_set_num_threads"),
)
_OPENMP_CALLS = (
    ("omp_get_max_threads", "omp_set_num_threads"),
    ("omp_get_dynamic", "omp_set_dynamic"),
    ("omp_get_max_active_levels", "omp_set_max_active_levels"),
)

_MAPPED = re.compile(rb"^\S+ \S(\S)(\S)(\S) \S+ \S+ [1-9]\d* +(/.*)$", re.MULTILINE)
_GONE = b" (deleted)"
_UNREAL = (b"/dev/", b"/proc/", b"/sys/", b"/memfd:", b"/SYSV", b"/[")
"""Mappings that are no files on a disk."""

_NAME_SERVICES = (b"/run/", b"/var/run/", b"/var/lib/sss/", b"/var/cache/nscd/", b"/var/db/nscd/")
"""Caches of users' and hosts' names: mapped by many processes, and rewritten by their services at any time."""

_LIMITS = tuple(
    sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")} - {resource.RLIMIT_CORE})
)
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_PR_SET_TIMERSLACK, _PR_GET_TIMERSLACK = 29, 30

_DRIVER_THREADS = ("cuda", "nv", "pt_")
"""Prefixes of the names of threads that a GPU's driver, or torch on its behalf, starts on demand in every worker."""

_KEPT_OWN_STATES = 256
"""Most configs whose own state is remembered: more than a problem has finalists."""


class Mapped(NamedTuple):
    """A mapped file: its stamp on the disk, ``None`` if it is gone, and whether code of it is mapped."""

    stamp: tuple[int, int, int] | None
    is_code: bool


class _Knob(NamedTuple):
    """A piece of state that can be read and restored. ``name`` is what messages call it.

    A kernel file's Python may change a ``settable`` knob for all its configs. It may also change the environment and
    the settings of torch.
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]
    settable: bool = False


@dataclass
class ProcessState:
    """Keeps the state of this process around one problem's configs; see the module.

    ``leftover`` says what could not be undone, and is empty as long as the process is as good as a new one.
    """

    _is_taken: bool = False
    _knobs: dict[str, _Knob] = field(default_factory=dict)
    _baseline: dict[str, Any] = field(default_factory=dict)
    _own: dict[str, dict[str, Any]] = field(default_factory=dict)
    _threads: frozenset[str] = frozenset()
    _mapped: dict[bytes, Mapped] = field(default_factory=dict)
    _runtimes: dict[bytes, ctypes.CDLL] = field(default_factory=dict)
    _private: tuple[bytes, ...] = ()
    _first: dict[str, Any] = field(default_factory=dict)
    leftover: str = ""

    def begin_problem(self) -> None:
        """Prepare to open a problem: restore the baseline; the first time, record the settings of a fresh process."""
        self.restore_baseline()
        if not self._first:
            self._first = {knob.name: knob.read() for knob in _KNOBS if knob.settable}

    def find_settings(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the settings that the kernel file's own Python has made for all configs, by name.

        A setting of an OpenMP or BLAS library counts only if it differs from the library's usual initial value, because
        a library that is not mapped before the first launch has no setting yet. ``environment`` is the one that the
        file was imported with.
        """
        baseline = self._baseline
        settings = {
            name: repr(baseline.get(name)) for name, first in self._first.items() if baseline.get(name) != first
        }
        settings[_TORCH.name] = repr(baseline.get(_TORCH.name))
        cores = len(os.sched_getaffinity(0))
        for name in baseline.keys() - {knob.name for knob in _KNOBS}:
            reader = name.partition(" ")[0]
            usual = {"omp_get_dynamic": (0,), "omp_get_max_active_levels": (1, 2**31 - 1)}.get(reader, (cores,))
            if baseline[name] not in usual:
                settings[name] = repr(baseline[name])
        for name in sorted({*environment, *os.environ} - _SET_BY_TORCH):
            if os.environ.get(name) != environment.get(name):
                settings[f"${name}"] = os.environ.get(name, "(unset)")
        return settings

    def take_baseline(self, private: Iterable[str] = ()) -> None:
        """Read the state that each config will start in.

        A library below one of the ``private`` directories belongs to a single config, and is no leftover.
        """
        self._private = (
            *(os.fsencode(os.path.realpath(place)) + b"/" for place in private),
            *_list_generated_directories(),
        )
        self._knobs = {knob.name: knob for knob in _KNOBS}
        self._own.clear()
        self._is_taken = False
        self._find_runtimes()
        self._baseline = self._read_knobs()
        self._is_taken = True

    def complete_baseline(self) -> None:
        """Accept the threads and files of the problem's reference, which has run since the baseline was read."""
        self.restore_baseline()
        # Keep the stamps of an earlier problem's files, to notice if they have changed since.
        self._mapped = {**self._read_mapped(), **self._mapped}
        self._threads = frozenset(_list_threads())

    def restore_baseline(self) -> None:
        """Restore the baseline. State that cannot be restored is described in :attr:`leftover`."""
        if not self._is_taken:
            return
        self._end_pools()
        self._write_knobs(self._baseline)

    @contextmanager
    def isolate_config(self, key: str) -> Iterator[None]:
        """Run the config whose artifact has this key, in the baseline and its own state; then look for leftovers."""
        self.restore_baseline()
        self._apply_own_state(key)
        try:
            yield
        finally:
            self.restore_baseline()
            self._find_leftovers()

    @contextmanager
    def learn_while_loading(self, key: str) -> Iterator[None]:
        """Load a config's library within :meth:`isolate_config`; state that this changes becomes the config's own."""
        yield
        self._find_runtimes()
        self.learn_own_state(key)

    @contextmanager
    def learn_while_loading_ahead(self, key: str) -> Iterator[None]:
        """Load the next config's library, and give the running config its state back afterwards."""
        before = self._read_knobs()
        self._write_knobs(self._baseline)
        try:
            with self.learn_while_loading(key):
                yield
        finally:
            self._write_knobs({**self._baseline, **before})

    def learn_own_state(self, key: str) -> None:
        """Remember the state that loading has changed as the config's own."""
        if not self._is_taken:
            return
        now = self._read_knobs()
        own = {name: value for name, value in now.items() if value != self._baseline.get(name)}
        # A timer that has run out must not start again.
        own.pop(_TIMERS_KNOB.name, None)
        if own and len(self._own) < _KEPT_OWN_STATES:
            self._own[key] = own

    @contextmanager
    def use_known_arithmetic(self) -> Iterator[None]:
        """Compute with the baseline's floating-point control for a while, whatever the config has set."""
        current = _read_arithmetic()
        baseline = self._baseline.get(_ARITHMETIC.name, current)
        if current == baseline:
            yield
            return
        # A pool's threads have the control of the thread that started them, so they must start anew.
        self._end_pools()
        _write_arithmetic(baseline)
        try:
            yield
        finally:
            self._end_pools()
            _write_arithmetic(current)

    def find_outdated_file(self) -> str:
        """Return a mapped file that has changed on the disk since it was mapped; empty if there is none."""
        for name, known in self._mapped.items():
            if known.stamp is not None and _stamp_file(name) != known.stamp:
                return os.fsdecode(name)
        return ""

    def _apply_own_state(self, key: str) -> None:
        own = self._own.get(key)
        if own is not None:
            self._write_knobs({**self._baseline, **own})

    def _read_knobs(self) -> dict[str, Any]:
        return {name: knob.read() for name, knob in self._knobs.items()}

    def _write_knobs(self, wanted: Mapping[str, Any]) -> None:
        """Write each knob whose value differs. If it still differs afterwards, that is a :attr:`leftover`."""
        for name, knob in self._knobs.items():
            if name not in wanted or knob.read() == wanted[name]:
                continue
            with suppress(OSError, ValueError, RuntimeError, TypeError):
                knob.write(wanted[name])
            if knob.read() != wanted[name]:
                self.leftover = self.leftover or f"it changed the {name} of its process"

    def _find_leftovers(self) -> None:
        """Find threads and libraries that were not there before the config."""
        if not self._is_taken:
            return
        new_threads = [thread for thread in _list_threads() if thread not in self._threads]
        new_threads = [thread for thread in new_threads if not _read_thread_name(thread).startswith(_DRIVER_THREADS)]
        if new_threads:
            threads = "a thread" if len(new_threads) == 1 else f"{len(new_threads)} threads"
            self.leftover = self.leftover or f"it left {threads} behind"
        for name, found in self._read_mapped().items():
            if name in self._mapped:
                continue
            self._mapped[name] = found
            if found.is_code and not name.startswith((*self._private, *_INSTALLED)):
                self.leftover = self.leftover or f"it loaded {os.fsdecode(name)}"

    def _read_mapped(self) -> dict[bytes, Mapped]:
        """Return the mapped files with their stamps. A known file keeps the stamp that it was first seen with."""
        mapped: dict[bytes, Mapped] = {}
        try:
            with open(MAPS, "rb", buffering=0) as stream:
                text = stream.read()
                while more := stream.read():
                    text += more
        except OSError:
            return mapped
        for match in _MAPPED.finditer(text):
            writable, executable, sharing, name = match.groups()
            # Skip a file that is mapped shared and writable: writes to the mapping change it on the disk.
            if name.startswith((*_UNREAL, *_NAME_SERVICES)) or (writable == b"w" and sharing == b"s"):
                continue
            is_code = executable == b"x"
            if name.endswith(_GONE):
                name = name.removesuffix(_GONE)
                if name in self._mapped:
                    # It was replaced after it was first seen, which its known stamp will show.
                    continue
                known = mapped.get(name)
                mapped[name] = Mapped(None, is_code or (known is not None and known.is_code))
                continue
            before = mapped.get(name)
            if before is None:
                known = self._mapped.get(name)
                mapped[name] = Mapped(_stamp_file(name) if known is None else known.stamp, is_code)
            elif is_code and not before.is_code:
                mapped[name] = Mapped(before.stamp, is_code)
        return mapped

    def _find_runtimes(self) -> None:
        """Add knobs for the OpenMP and BLAS libraries that are mapped by now."""
        for name in self._read_mapped():
            text = os.fsdecode(name)
            if name in self._runtimes or not (_OPENMP.search(text) or _BLAS.search(text)):
                continue
            try:
                library = ctypes.CDLL(text, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
            except OSError:
                continue
            self._runtimes[name] = library
        calls = [
            (name, library, pair) for name, library in self._runtimes.items() for pair in (*_OPENMP_CALLS, *_BLAS_CALLS)
        ]
        for name, library, (reader, writer) in calls:
            knob_name = f"{reader} of {os.path.basename(os.fsdecode(name))}"
            if knob_name in self._knobs or not (hasattr(library, reader) and hasattr(library, writer)):
                continue
            knob = _Knob(knob_name, getattr(library, reader), getattr(library, writer))
            self._knobs[knob_name] = knob
            if self._is_taken:
                # The library was just mapped and has not run yet, so this is its initial value.
                self._baseline[knob_name] = knob.read()

    def _end_pools(self) -> None:
        for library in self._runtimes.values():
            if hasattr(library, "omp_pause_resource_all"):
                library.omp_pause_resource_all(_OPENMP_PAUSE_HARD)


def _read_arithmetic() -> bytes:
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


def _write_arithmetic(wanted: bytes) -> None:
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


def _list_threads() -> list[str]:
    try:
        return os.listdir(TASKS)
    except OSError:
        return []


def _read_thread_name(thread: str) -> str:
    try:
        with open(f"{TASKS}/{thread}/comm", encoding="utf-8", errors="replace") as stream:
            return stream.read().strip()
    except OSError:
        # The thread has ended, so it is no leftover, just like a driver's thread.
        return _DRIVER_THREADS[0]


def _read_affinities() -> dict[int, frozenset[int]]:
    affinities = {}
    for thread in map(int, _list_threads()):
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


def _end_timers(wanted: tuple[bool, ...]) -> None:
    for timer, runs in zip(_TIMERS, wanted, strict=True):
        if not runs:
            signal.setitimer(timer, 0)


def _read_directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""


def _read_torch() -> tuple[Any, ...]:
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


def _write_torch(wanted: tuple[Any, ...]) -> None:
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


def _stamp_file(name: bytes) -> tuple[int, int, int] | None:
    try:
        state = os.stat(name)
    except OSError:
        return (0, 0, 0)
    return state.st_ino, state.st_size, state.st_mtime_ns


def _list_installed_directories() -> tuple[bytes, ...]:
    """Return the directories of installed libraries, which are the same for every worker."""
    system = ("/lib", "/lib32", "/lib64", "/usr", "/nix/store", "/gnu/store", "/opt/cuda", "/opt/rocm")
    places = [*system, sys.prefix, sys.base_prefix, sys.exec_prefix, *sysconfig.get_paths().values()]
    with suppress(Exception):
        places += [*site.getsitepackages(), site.getusersitepackages()]
    directories = {os.path.realpath(place) for place in places} | set(places)
    return tuple(os.fsencode(place.rstrip("/")) + b"/" for place in sorted(directories) if len(place) > 1)


def _list_generated_directories() -> tuple[bytes, ...]:
    """Return the directories where compilers that run in the lane keep what they make for single configs."""
    home = os.path.expanduser("~")
    places = [os.environ.get(name, "") for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TMPDIR")]
    # Not by `tempfile`, which would remember its answer for user code, also in forked processes.
    places += [f"{home}/.triton", f"{home}/.cache", *glob("/tmp/torchinductor_*")]
    return tuple(os.fsencode(os.path.realpath(place)) + b"/" for place in places if place)


_INSTALLED = _list_installed_directories()

_ARITHMETIC = _Knob("floating-point control", _read_arithmetic, _write_arithmetic, settable=True)

_TORCH = _Knob("settings of torch", _read_torch, _write_torch)

_TIMERS_KNOB = _Knob("timers", lambda: tuple(signal.getitimer(timer)[0] > 0 for timer in _TIMERS), _end_timers)

_SET_BY_TORCH = frozenset({"CUDA_MODULE_LOADING"})
"""Variables that torch sets when it makes a context, which a spare worker does before it opens a problem."""

_KNOBS = (
    _ARITHMETIC,
    _Knob("environment", _read_environment, _write_environment),
    _Knob("affinity", lambda: _Affinities(_read_affinities()), _write_affinities),
    _Knob(
        "niceness",
        lambda: os.getpriority(os.PRIO_PROCESS, 0),
        lambda wanted: os.setpriority(os.PRIO_PROCESS, 0, wanted),
        settable=True,
    ),
    _Knob(
        "scheduling policy",
        lambda: (os.sched_getscheduler(0), os.sched_getparam(0).sched_priority),
        lambda wanted: os.sched_setscheduler(0, wanted[0], os.sched_param(wanted[1])),
        settable=True,
    ),
    _Knob("working directory", _read_directory, os.chdir),
    _Knob("umask", _read_umask, os.umask, settable=True),
    _Knob(
        "signal mask",
        lambda: frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        lambda wanted: signal.pthread_sigmask(signal.SIG_SETMASK, wanted),
        settable=True,
    ),
    _TIMERS_KNOB,
    _Knob("limits", _read_limits, _write_limits),
    _Knob(
        "timer slack",
        lambda: _libc.prctl(_PR_GET_TIMERSLACK, 0, 0, 0, 0),
        lambda wanted: _libc.prctl(_PR_SET_TIMERSLACK, wanted, 0, 0, 0),
        settable=True,
    ),
    _TORCH,
)
