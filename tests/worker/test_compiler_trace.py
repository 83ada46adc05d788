"""What a compilation has read: unknown files, distributions, variables, and files that change meanwhile."""

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
    """A project with one header that was not just written."""
    root = tmp_path.resolve() / "project"
    root.mkdir()
    (root / "a.h").write_text("int a; // one\n")
    return root


def make_trace(project: Path, *known: str) -> CompilerTrace:
    """Return the trace of a request that begins now, for a kernel whose file names ``known`` the daemon knows."""
    kernel = KernelRef("p", "tune_k.py", "k", "fake", (), dict.fromkeys(known, "00"), known)
    return CompilerTrace(kernel, Places({"p": str(project)}, "", ""))


def observe_files(make_trace: CompilerTrace, *paths: Path) -> tuple[Observation, ...]:
    """Return the observations of files that a compiler has read or searched."""
    return make_trace.list_observations({path: stamp(path) for path in paths}, {}, ())


def install_library(project: Path, version: str) -> Path:
    """Install a version of a library beside the project and return its header; other versions are removed."""
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
    """Known variables are part of the requested key; a variable with another value is observed and contradicts the
    key.
    """
    known = {"CC": digest_variable("gcc"), "CXX": digest_variable(None)}
    kernel = KernelRef("p", "tune_k.py", "k", "fake", (), {}, variables=known)
    make_trace = CompilerTrace(kernel, Places({"p": str(project)}, "", ""))
    assert make_trace.list_observations({}, {"CC": "gcc", "CXX": None}, ()) == ()
    observations = make_trace.list_observations({}, {"CC": "clang", "CXX": None, "CPATH": None}, ())
    assert [(one.name, one.digest) for one in observations] == [("env:CC", digest_variable("clang")), ("env:CPATH", "")]


def test_names_that_the_daemon_knows_are_left_out(project: Path) -> None:
    """The daemon checks known names itself; other names are observed, absent files included."""
    (known,) = observe_files(make_trace(project, "a.h"), project / "a.h", project / "b.h")
    assert known == Observation("b.h", "", places=("b.h",), is_source=True)
    (found,) = observe_files(make_trace(project), project / "a.h")
    assert (found.name, found.places, found.is_source) == ("a.h", ("a.h",), True)


def test_a_young_file_is_read_twice(project: Path) -> None:
    """A file that was just written may change while it is read; it is steady if the second reading is equal."""
    trace = make_trace(project)
    (project / "new.h").write_text("1")
    assert not trace.are_files_steady([project / "new.h"])
    assert trace.are_files_steady([project / "new.h"])
    (project / "new.h").write_text("2")
    assert not trace.are_files_steady([project / "new.h"])


def test_a_change_after_the_last_look_is_refused(project: Path) -> None:
    """Only steady contents are recorded."""
    trace = make_trace(project)
    trace.are_files_steady([project / "a.h"])
    (project / "a.h").write_text("int b;\n")
    with pytest.raises(SourceChanged, match=r"a\.h changed while it was compiled"):
        observe_files(trace, project / "a.h")


def test_a_library_counts_by_its_distribution(project: Path) -> None:
    """All headers of a library are one observation, which changes with the version, wherever its RECORD is."""
    header = install_library(project, "1.0")
    (entry,) = observe_files(make_trace(project), header, header.with_name("missed.h"))
    assert entry.name == "dist:mathlib"
    assert refresh_observation(entry, str(project)) == entry
    install_library(project, "2.0")
    other = refresh_observation(entry, str(project))
    assert other.places != entry.places
    assert other.meaning != entry.meaning
    os.rename(header.parent.parent, project.parent / "gone")
    assert refresh_observation(other, str(project)).decisive == ""


def test_a_variable_counts_by_its_value(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unset variable has an empty digest."""
    entry = Observation("env:KTUNED_TEST", "")
    # Another test may have imported a kernel file in this process.
    monkeypatch.setattr(OBSERVER, "kernel_file", None)
    monkeypatch.setenv("KTUNED_TEST", "1")
    assert refresh_observation(entry, str(project)).digest
    monkeypatch.delenv("KTUNED_TEST")
    assert refresh_observation(replace(entry, digest="ff"), str(project)).digest == ""
