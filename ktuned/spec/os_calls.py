"""Calls to ``os`` that no audit hook sees: each is noted for the code that makes it.

They are the variables that it reads, whether a file is there and how large it is, and child processes of
``multiprocessing``.
"""

from __future__ import annotations

import _posixsubprocess
import functools
import os
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Protocol

from ktuned.spec import callers
from ktuned.spec.observer import OBSERVER

_FINDING = ("PATH", "HOME", "COLUMNS", "LINES", "LANG", "TEMP", "TMP", "PYTHON")
"""Beginnings of the names of variables that the standard library reads to find files, or to print. What it finds there
is observed itself."""


_FINDING_WAYS = ("/posixpath.py", "<frozen posixpath>")


class OsCallNotes(Protocol):
    """Takes what was asked, with the frame of the code that asked."""

    def ask(self, name: object, user: FrameType | None) -> None:
        """Note a call of ``os.stat``, ``os.lstat`` or ``os.access``: a file was looked at without being opened."""

    def read(self, name: str, user: FrameType | None) -> None:
        """Note that a variable was read."""

    def read_all(self, user: FrameType) -> None:
        """Note that all variables were walked over."""

    def follow_link(self, name: object, user: FrameType | None) -> None:
        """Note that a link's text was read."""

    def start(self, frame: FrameType, program: str) -> None:
        """Note that a child process was started."""


def interpose(notes: OsCallNotes) -> None:
    """Have this process's ``os`` report to ``notes``, for the rest of its life."""
    _RecordingEnviron.notes = notes
    for environment in (os.environ, os.environb):
        environment.__class__ = _RecordingEnviron
    os.stat, os.lstat, os.access = (_asking(function, notes) for function in (os.stat, os.lstat, os.access))
    os.readlink = _following(os.readlink, notes)
    _posixsubprocess.fork_exec = _starting(_posixsubprocess.fork_exec, notes)


class _RecordingEnviron(os._Environ):  # type: ignore[type-arg]
    """The environment of a worker, which notes what the project reads."""

    notes: OsCallNotes

    def __getitem__(self, key: Any) -> Any:
        if OBSERVER.kernel_file is not None and isinstance(key, str | bytes):
            user = callers.reader(sys._getframe(1))
            name = os.fsdecode(key)
            # Who walks over all of them names none.
            if user is not None and _walking.get(id(user)) != user.f_lasti:
                if not callers.is_stdlib(user):
                    self.notes.read(name, user)
                elif not name.startswith(_FINDING):
                    self.notes.read(name, callers.user(user))
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[Any]:
        user = callers.reader(sys._getframe(1))
        if user is not None:
            _walking.clear()
            _walking[id(user)] = user.f_lasti
            self.notes.read_all(user)
        return super().__iter__()


_walking: dict[int, int] = {}
"""The place of the code that walks over all variables, by its frame."""


def _asking(asked: Callable[..., Any], notes: OsCallNotes) -> Callable[..., Any]:
    """Return a function that looks at a file, with a note of it: whether it is there decides what the code does."""

    @functools.wraps(asked)
    def recording(path: Any, *arguments: Any, **options: Any) -> Any:
        if OBSERVER.kernel_file is not None and options.get("dir_fd") is None:
            notes.ask(path, callers.user(sys._getframe(1)))
        return asked(path, *arguments, **options)

    return _supported(recording, asked)


def _following(asked: Callable[..., Any], notes: OsCallNotes) -> Callable[..., Any]:
    """Return ``os.readlink`` with a note; not of the way to a file, which its stamps have."""

    @functools.wraps(asked)
    def recording(path: Any, *arguments: Any, **options: Any) -> Any:
        frame = sys._getframe(1)
        if OBSERVER.kernel_file is not None and not frame.f_code.co_filename.endswith(_FINDING_WAYS):
            notes.follow_link(path, callers.user(frame))
        return asked(path, *arguments, **options)

    return _supported(recording, asked)


def _starting(started: Callable[..., Any], notes: OsCallNotes) -> Callable[..., Any]:
    """Return ``fork_exec`` with a note: ``multiprocessing`` starts its children with it, which raises no event."""

    @functools.wraps(started)
    def recording(arguments: Any, *options: Any) -> Any:
        frame = sys._getframe(1)
        if OBSERVER.kernel_file is not None and frame.f_code.co_filename.endswith("multiprocessing/util.py"):
            notes.start(frame, os.fsdecode(arguments[0]))
        return started(arguments, *options)

    return recording


def _supported(recording: Callable[..., Any], asked: Callable[..., Any]) -> Callable[..., Any]:
    for supports in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
        if asked in supports:
            supports.add(recording)
    return recording
