"""The state of a lane's process, restored around each config, so that no config affects the next one.

A lane's worker measures one config after another, because a process with torch or a GPU's context takes seconds to
start. Without care, a config's changes to its process would affect all later configs and their checks: a library that
is linked with ``-ffast-math`` sets flush-to-zero when it is loaded; a kernel calls ``omp_set_num_threads``,
``sched_setaffinity`` or ``setenv``; a thread that it has started keeps a core busy.

:class:`ProcessState` treats such state in one of three ways.

**Restored**: state that can be read and written. :meth:`ProcessState.read_baseline` reads it when a problem is opened,
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

**Loaded**: state that a config's library changes when it is loaded. An application that loads the library gets the same
state, so the config is launched in it. It is read after loading (:meth:`ProcessState.remember_changes_by_loading`), and
written again whenever the config runs, because a library's constructor runs once per process, but finalists are
launched in turns. Checks never run in it (:meth:`ProcessState.use_known_arithmetic`).

**Ended**: processes that the config has started, also those that have detached themselves.

**Found, but not undone**: threads, timers, signal handlers and shared mappings that the config has left behind
(:mod:`ktuned.worker.residues`), processes that had to be ended, libraries of the project that it has mapped, which have
data of their own (:mod:`ktuned.worker.mapped_files`), and state that could not be restored.
:attr:`ProcessState.leftover` describes it, the batch ends, and the lane takes a fresh worker. The same happens if a
mapped file has changed on the disk (:meth:`ProcessState.find_outdated_file`).

Changes to the data of libraries that were loaded before the first config, to file descriptors, and by ``mallopt`` are
not noticed. All of this costs some 0.4 ms per config.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from ktuned.worker.mapped_files import MappedFiles
from ktuned.worker.process_settings import (
    ARITHMETIC,
    SETTINGS,
    TIMERS,
    TORCH,
    Setting,
    read_arithmetic,
    write_arithmetic,
)
from ktuned.worker.residues import end_processes, find_new_residues, read_residues
from ktuned.worker.threading_libraries import ThreadingLibraries, is_usual_value

_MAX_LOADED_STATES = 256
"""Most configs whose loaded state is remembered: more than a problem has finalists."""

_SET_BY_TORCH = frozenset({"CUDA_MODULE_LOADING"})
"""Variables that torch sets when it makes a context, which a spare worker does before it opens a problem."""


class ProcessState:
    """Keeps the state of this process around one problem's configs; see the module.

    Attributes:
        leftover: what could not be undone; empty as long as the process is as good as a new one.
    """

    def __init__(self) -> None:
        self.leftover = ""
        self._settings: dict[str, Setting] = {}
        self._fresh: dict[str, Any] = {}
        self._baseline: dict[str, Any] = {}
        self._loaded_states: dict[str, dict[str, Any]] = {}
        self._shared: frozenset[bytes] = frozenset()
        self._residues: dict[str, frozenset[object]] = {}
        self._files = MappedFiles()
        self._libraries = ThreadingLibraries()

    def begin_problem(self) -> None:
        """Prepare to open a problem: restore the baseline; the first time, record the settings of a fresh process."""
        self.restore_baseline()
        if not self._fresh:
            self._fresh = {setting.name: setting.read() for setting in SETTINGS if setting.is_files_choice}

    def find_file_settings(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the settings that the kernel file's own Python has made for all configs, by name.

        A setting of an OpenMP or BLAS library counts only if it differs from the library's usual initial value, because
        a library that is not mapped before the first launch has no setting yet. ``environment`` is the one that the
        file was imported with.
        """
        baseline = self._baseline
        found = {name: repr(baseline.get(name)) for name, fresh in self._fresh.items() if baseline.get(name) != fresh}
        found[TORCH.name] = repr(baseline.get(TORCH.name))
        for name in baseline.keys() - {setting.name for setting in SETTINGS}:
            if not is_usual_value(name, baseline[name]):
                found[name] = repr(baseline[name])
        for name in sorted({*environment, *os.environ} - _SET_BY_TORCH):
            if os.environ.get(name) != environment.get(name):
                found[f"${name}"] = os.environ.get(name, "(unset)")
        return found

    def read_baseline(self, expected_directories: Iterable[str]) -> None:
        """Read the state that each config will start in.

        A library below one of the ``expected_directories`` belongs to a single config, and is no leftover.
        """
        self._files.expect_libraries_below(expected_directories)
        self._settings = {setting.name: setting for setting in SETTINGS}
        self._loaded_states.clear()
        self._find_threading_libraries()
        self._baseline = self._read_settings()

    def complete_baseline(self) -> None:
        """Accept the threads and files of the problem's reference, which has run since the baseline was read."""
        self.restore_baseline()
        self._files.accept_mapped_files()
        self._residues = read_residues()
        self._shared = self._files.shared

    def restore_baseline(self) -> None:
        """Restore the baseline. State that cannot be restored is described in :attr:`leftover`."""
        self._libraries.end_thread_pools()
        self._write_settings(self._baseline)

    @contextmanager
    def isolate_config(self, key: str) -> Iterator[None]:
        """Run the config whose artifact has this key, in the baseline and its loaded state; then look for leftovers."""
        self.restore_baseline()
        if key in self._loaded_states:
            self._write_settings({**self._baseline, **self._loaded_states[key]})
        try:
            yield
        finally:
            self.restore_baseline()
            self._find_leftovers()

    @contextmanager
    def remember_changes_by_loading(self, key: str) -> Iterator[None]:
        """Load a config's library within :meth:`isolate_config`, and remember the state that this changes."""
        yield
        self._find_threading_libraries()
        now = self._read_settings()
        changed = {name: value for name, value in now.items() if value != self._baseline.get(name)}
        # A timer that has run out must not start again.
        changed.pop(TIMERS.name, None)
        if changed and len(self._loaded_states) < _MAX_LOADED_STATES:
            self._loaded_states[key] = changed

    @contextmanager
    def record_loaded_state_ahead(self, key: str) -> Iterator[None]:
        """Load the next config's library, and give the running config its state back afterwards."""
        before = self._read_settings()
        self._write_settings(self._baseline)
        try:
            with self.remember_changes_by_loading(key):
                yield
        finally:
            self._write_settings({**self._baseline, **before})

    @contextmanager
    def use_known_arithmetic(self) -> Iterator[None]:
        """Compute with the baseline's floating-point control for a while, whatever the config has set."""
        current = read_arithmetic()
        baseline = self._baseline.get(ARITHMETIC.name, current)
        if current == baseline:
            yield
            return
        # A pool's threads have the control of the thread that started them, so they must start anew.
        self._libraries.end_thread_pools()
        write_arithmetic(baseline)
        try:
            yield
        finally:
            self._libraries.end_thread_pools()
            write_arithmetic(current)

    def find_outdated_file(self) -> str:
        """Return a mapped file that has changed on the disk since it was mapped; empty if there is none."""
        return self._files.find_changed_file()

    def _read_settings(self) -> dict[str, Any]:
        return {name: setting.read() for name, setting in self._settings.items()}

    def _write_settings(self, wanted: Mapping[str, Any]) -> None:
        """Write each setting whose value differs. If it still differs afterwards, that is a :attr:`leftover`."""
        for name, setting in self._settings.items():
            if name not in wanted or setting.read() == wanted[name]:
                continue
            with suppress(OSError, ValueError, RuntimeError, TypeError):
                setting.write(wanted[name])
            if setting.read() != wanted[name]:
                self._add_leftover(f"it changed the {name} of its process")

    def _find_threading_libraries(self) -> None:
        """Add the settings of the OpenMP and BLAS libraries that are mapped by now."""
        self._libraries.add_mapped_libraries(self._files.list_mapped_files())
        for setting in self._libraries.settings:
            if setting.name in self._settings:
                continue
            self._settings[setting.name] = setting
            # The library was just mapped and has not run yet, so this is its initial value.
            self._baseline[setting.name] = setting.read()

    def _find_leftovers(self) -> None:
        """End processes, and find residues and mappings that were not there before the config."""
        if not self._residues:
            return
        if end_processes({*self._residues["process"]}):
            self._add_leftover("it left a process behind")
        for name in find_new_residues(self._residues):
            self._add_leftover(f"it left a {name} behind")
        for library in self._files.find_new_libraries():
            self._add_leftover(f"it loaded {library}")
        if not self._files.shared <= self._shared:
            self._add_leftover("it left a shared mapping behind")

    def _add_leftover(self, message: str) -> None:
        """Keep the first leftover: one is enough to need a fresh process."""
        self.leftover = self.leftover or message
