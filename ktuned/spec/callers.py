"""Callers: the code on whose behalf something is done, found on the stack.

The standard library acts for who calls it, ktuned and installed packages for themselves.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from ktuned.spec.observer import OBSERVER
from ktuned.spec.origin import installed_in, is_ours

STDLIB = f"{Path(sysconfig.get_path('stdlib')).resolve()}/"
"""Not ``platstdlib``: in a virtual environment that is where its packages are installed."""

_READING = ("/os.py", "/_collections_abc.py", "<frozen os>", "<frozen _collections_abc>")


def frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and its callers in the standard library, up to the first outside it."""
    while frame is not None:
        yield frame
        if not is_stdlib(frame):
            return
        frame = frame.f_back


def user(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame outside the standard library; ``None`` below an import."""
    last = None
    for last in frames(frame):
        if last.f_code.co_filename.startswith("<frozen importlib"):
            return None
    return last


def reader(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame that is not of ``os.environ`` itself."""
    while frame is not None and frame.f_code.co_filename.endswith(_READING):
        frame = frame.f_back
    return frame


def is_stdlib(frame: FrameType) -> bool:
    """Return whether a frame's code is the standard library's."""
    file = frame.f_code.co_filename
    return file.startswith((STDLIB, "<frozen ")) and installed_in(file) is None


def is_project(frame: FrameType | None) -> bool:
    """Return whether a frame's code counts by content."""
    if frame is None:
        return False
    return OBSERVER.counts(frame.f_code.co_filename) and not is_ours(module_name(frame))


def module_name(frame: FrameType) -> str:
    """Return the name of the module that a frame's code belongs to."""
    return str(frame.f_globals.get("__name__", ""))


def place(frame: FrameType) -> str:
    """Return a frame's file and line for a message."""
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
