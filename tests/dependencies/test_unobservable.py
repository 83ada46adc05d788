"""Programs and libraries that read past the observer, recognized by their files."""

from __future__ import annotations

from pathlib import Path

import pytest

from ktuned.dependencies.unobservable import explain_unobservable

ELF = b"\x7fELF" + bytes(60)
LOADER = b"/lib64/ld-linux-x86-64.so.2\0"
OPENAT = b"\xb8\x01\x01\x00\x00"
SYSCALL = b"\x0f\x05"
GO_NOTE = b"\x04\0\0\0\x53\0\0\0\x04\0\0\0Go\0\0"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (ELF + LOADER, ""),
        (b"#!/bin/sh\n", ""),
        (ELF, "linked statically"),
        (ELF + LOADER + GO_NOTE, "past libc"),
        (ELF + LOADER + OPENAT + bytes(20) + SYSCALL, "past libc"),
        (ELF + LOADER + OPENAT + bytes(200) + SYSCALL, ""),
        # futex: it has no name to read.
        (ELF + LOADER + b"\xb8\xca\x00\x00\x00" + SYSCALL, ""),
        (ELF + LOADER + SYSCALL * 1000 + OPENAT + SYSCALL, "past libc"),
    ],
)
def test_unobservable_programs_are_recognized_by_their_files(tmp_path: Path, content: bytes, reason: str) -> None:
    """Without a loader, by Go's note, or by the number of a call that reads names before ``syscall``."""
    program = tmp_path / "program"
    program.write_bytes(content)
    said = explain_unobservable(str(program))
    assert (reason in said) if reason else not said, said


def test_a_rebuilt_program_is_examined_again(tmp_path: Path) -> None:
    """The answer belongs to the file's content, not to its name."""
    program = tmp_path / "program"
    program.write_bytes(ELF)
    assert explain_unobservable(str(program))
    program.unlink()
    program.write_bytes(ELF + LOADER)
    assert explain_unobservable(str(program)) == ""


def test_a_library_without_a_loaders_name_is_observable(tmp_path: Path) -> None:
    """It is loaded by its program's."""
    library = tmp_path / "kernel.so"
    library.write_bytes(ELF)
    assert explain_unobservable(str(library), is_program=False) == ""


def test_an_absent_program_is_not_unobservable(tmp_path: Path) -> None:
    """It was never run; one that cannot be read is said."""
    assert explain_unobservable(str(tmp_path / "gone")) == ""
