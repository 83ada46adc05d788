"""What a request has read: entries of files that are not known, of distributions, and files that change meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from ktuned.dependencies.code_observer import OBSERVER
from ktuned.ipc.places import Places
from ktuned.ipc.requests import KernelRef
from ktuned.ipc.stamps import stamp
from ktuned.model.trace import Observation, digest_variable
from ktuned.worker.compiler_trace import CompilerTrace
from ktuned.worker.observations import SourceChanged, refresh_observation


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with one header, which is old."""
    here = tmp_path.resolve() / "project"
    here.mkdir()
    (here / "a.h").write_text("int a; // one\n")
    return here


def trace(project: Path, *known: str) -> CompilerTrace:
    """Return the trace of a request that begins now."""
    kernel = KernelRef("p", "tune_k.py", "k", "fake", (), dict.fromkeys(known, "00"), known)
    return CompilerTrace(kernel, Places({"p": str(project)}, "", ""))


def read(trace: CompilerTrace, *paths: Path) -> tuple[Observation, ...]:
    """Return the entries of files that a compiler has read, or looked for in vain."""
    return trace.list_observations({path: stamp(path) for path in paths}, {}, ())


def installed(project: Path, version: str) -> Path:
    """Install a library beside the project, in place of any other version; return a header of it."""
    site = project.parent / "lib" / "site-packages"
    for info in site.glob("*.dist-info"):
        (info / "RECORD").unlink()
        info.rmdir()
    (site / "mathlib").mkdir(parents=True, exist_ok=True)
    (site / "mathlib" / "core.h").write_text(version)
    info = site / f"mathlib-{version}.dist-info"
    info.mkdir()
    (info / "RECORD").write_text(f"mathlib/core.h,sha256={version},1\n")
    return site / "mathlib" / "core.h"


def test_variables_that_the_daemon_knows_by_their_value_are_left_out(project: Path) -> None:
    """They are a part of the key that it asked for; one with another value is told, and contradicts it."""
    known = {"CC": digest_variable("gcc"), "CXX": digest_variable(None)}
    kernel = KernelRef("p", "tune_k.py", "k", "fake", (), {}, variables=known)
    trace = CompilerTrace(kernel, Places({"p": str(project)}, "", ""))
    assert trace.list_observations({}, {"CC": "gcc", "CXX": None}, ()) == ()
    found = trace.list_observations({}, {"CC": "clang", "CXX": None, "CPATH": None}, ())
    assert [(one.name, one.digest) for one in found] == [("env:CC", digest_variable("clang")), ("env:CPATH", "")]


def test_names_that_the_daemon_knows_are_left_out(project: Path) -> None:
    """A name that the daemon knows is checked elsewhere; another one is looked at, or known to be absent."""
    (known,) = read(trace(project, "a.h"), project / "a.h", project / "b.h")
    assert known == Observation("b.h", "", places=("b.h",), is_source=True)
    (found,) = read(trace(project), project / "a.h")
    assert (found.name, found.places, found.is_source) == ("a.h", ("a.h",), True)


def test_a_young_file_is_read_twice(project: Path) -> None:
    """A file that was just written may have changed while it was read; unchanged at the second reading, it has not."""
    reading = trace(project)
    (project / "new.h").write_text("1")
    assert not reading.are_files_steady([project / "new.h"])
    assert reading.are_files_steady([project / "new.h"])
    (project / "new.h").write_text("2")
    assert not reading.are_files_steady([project / "new.h"])


def test_a_change_after_the_last_look_is_refused(project: Path) -> None:
    """What is recorded is what was found steady, or nothing."""
    reading = trace(project)
    reading.are_files_steady([project / "a.h"])
    (project / "a.h").write_text("int b;\n")
    with pytest.raises(SourceChanged, match=r"a\.h changed while it was compiled"):
        read(reading, project / "a.h")


def test_a_library_counts_by_its_distribution(project: Path) -> None:
    """An installed library's headers are one entry, which another version changes, wherever its record is then."""
    header = installed(project, "1.0")
    (entry,) = read(trace(project), header, header.with_name("missed.h"))
    assert entry.name == "dist:mathlib"
    assert refresh_observation(entry, str(project)) == entry
    installed(project, "2.0")
    other = refresh_observation(entry, str(project))
    assert other.places != entry.places
    assert other.meaning != entry.meaning
    os.rename(header.parent.parent, project.parent / "gone")
    assert refresh_observation(other, str(project)).decisive == ""


def test_a_variable_counts_by_its_value(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable's entry has the digest of its value, and none where it is not set."""
    entry = Observation("env:KTUNED_TEST", "")
    # Another test may have imported a kernel file in this process.
    monkeypatch.setattr(OBSERVER, "kernel_file", None)
    monkeypatch.setenv("KTUNED_TEST", "1")
    assert refresh_observation(entry, str(project)).digest
    monkeypatch.delenv("KTUNED_TEST")
    assert refresh_observation(replace(entry, digest="ff"), str(project)).digest == ""
