"""Programs and libraries whose reads the observer cannot see, recognized by their files.

The observer (:mod:`ktuned.observer`) replaces functions of libc, in every process that the dynamic loader starts. Three
kinds of code never call those:

- a program that is linked statically: no loader runs that would put the observer before libc;
- a program that runs as another user: the loader then ignores preloaded libraries;
- code that calls the kernel directly, by the processor's ``syscall`` instruction. All Go programs do. Other code is
  recognized by the number of a system call that takes a path, set shortly before that instruction.

Only files of the size that people build for a kernel are searched for such instructions: in a compiler of 30 MiB, these
bytes occur by chance. Files that a package manager has installed are not searched, because their version represents
them. Code that hides its calls on purpose is not found; no build does that.
"""

from __future__ import annotations

import functools
import mmap
import os
import re
import stat
from typing import BinaryIO

_HEAD_BYTES = 1 << 16
"""Enough of an executable to hold its headers, the loader's name and the linker's notes."""

_LARGEST_SEARCHED = 4 << 20
"""Largest file whose instructions are searched, in bytes; in larger files, matches occur by chance."""

_LOADERS = (b"ld-linux", b"/ld-", b"ld.so")

_GO = re.compile(rb"\x04\0\0\0....\x04\0\0\0Go\0\0", re.DOTALL)
"""The note of Go's linker: the owner's name has four bytes, and the type is 4."""

_READING_CALLS = (0x2, 0x4, 0x6, 0x15, 0x3B, 0x4E, 0x59, 0xD9, 0x101, 0x106, 0x10B, 0x10D, 0x142, 0x14C, 0x1B5, 0x1B7)
"""x86-64: open, stat, lstat, access, execve, getdents, readlink, getdents64, openat, newfstatat, readlinkat, faccessat,
execveat, statx, openat2, faccessat2.
"""

_SYSCALL = b"\x0f\x05"

_READS_NAMES = re.compile(
    b"(?:\xb8|\x48\xc7\xc0)(?:%s)" % b"|".join(re.escape(call.to_bytes(4, "little")) for call in _READING_CALLS),
    re.DOTALL,
)
"""``mov $number, %eax`` (or ``%rax``), which sets a system call's number."""

_LARGEST_DISTANCE = 48
"""Most bytes between that instruction and ``syscall``: room for instructions that set the other arguments."""


def explain_unobservable(path: str, *, is_program: bool = True, is_installed: bool = False) -> str:
    """Return why a program or a mapped library could not be observed, as half a sentence; empty if it could.

    Args:
        path: its absolute path.
        is_program: it was run, and not only mapped.
        is_installed: a package manager has put it there.

    >>> explain_unobservable("/bin/sh", is_installed=True)
    ''
    """
    try:
        found = os.stat(path)
        return _explain_file(path, is_program, is_installed, found.st_mode, found.st_mtime_ns)
    except OSError:
        return f"{path} cannot be read" if os.path.exists(path) else ""


@functools.lru_cache(1024)
def _explain_file(path: str, is_program: bool, is_installed: bool, mode: int, _changed: int) -> str:
    name = os.path.basename(path)
    if is_program and mode & (stat.S_ISUID | stat.S_ISGID):
        return f"{name} runs as another user, and cannot be observed"
    with open(path, "rb") as stream:
        head = stream.read(_HEAD_BYTES)
        if not head.startswith(b"\x7fELF"):
            return ""
        if is_program and not any(loader in head for loader in _LOADERS):
            return f"{name} is linked statically, and cannot be observed"
        if _GO.search(head) or (
            not is_installed
            and os.fstat(stream.fileno()).st_size <= _LARGEST_SEARCHED
            and _passes_names_to_kernel(stream)
        ):
            return f"{name} reads files past libc, by system calls of its own, and cannot be observed"
    return ""


def _passes_names_to_kernel(stream: BinaryIO) -> bool:
    """Return whether a file has instructions that pass a path to the kernel."""
    with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as code:
        found = code.find(_SYSCALL)
        while found >= 0:
            if _READS_NAMES.search(code, max(found - _LARGEST_DISTANCE, 0), found):
                return True
            found = code.find(_SYSCALL, found + 1)
    return False
