"""The tvm_ffi backend: what every backend promises, and what this one promises besides."""

import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from ktuned import backends
from ktuned.backends import MAX_MESSAGE_CHARS, move_error_first
from ktuned.backends.contract import Absence, Absent, Compiled, Unit
from ktuned.backends.registry import Registry
from ktuned.ipc.manifest import digest_file
from ktuned.model.device import Device
from ktuned.model.errors import BackendError, Unsupported
from ktuned.model.values import Outcome
from ktuned.testing.backends import check_backend
from ktuned_tvm_ffi import Build, TvmFfi, prelude
from ktuned_tvm_ffi.compiler import ERROR, STANDARD_FLAGS, Compiler
from tests.plugins.axpy import EXAMPLE, SOURCE

Compile = Callable[..., tuple[Compiled, Path]]


def cpu() -> Device:
    """Return the device that this machine is."""
    devices = TvmFfi().devices()
    assert not isinstance(devices, Absent), devices
    return devices[0]


@pytest.fixture
def compile_one(tmp_path: Path) -> Compile:
    """Return a function that compiles a Build of some sources into a new directory."""
    numbers = itertools.count()

    def compile_one(build: backends.Build = EXAMPLE.good, *sources: Path, target: str = "") -> tuple[Compiled, Path]:
        key = f"unit{next(numbers)}"
        (tmp_path / key).mkdir()
        unit = Unit(key, build, sources or (SOURCE,), SOURCE, "axpy", target or cpu().target)
        (result,) = TvmFfi().compile([unit], tmp_path)
        return result, tmp_path / key

    return compile_one


@pytest.fixture
def fake_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that makes a shell script the compiler: it knows its version and then runs ``body``."""

    def install(body: str) -> None:
        script = tmp_path / "fake-cxx"
        script.write_text(f'#!/bin/sh\n[ "$1" = --version ] && {{ echo "fake 1.0"; exit 0; }}\n{body}\n')
        script.chmod(0o755)
        monkeypatch.setenv("CXX", str(script))

    return install


def test_it_keeps_every_promise_of_a_backend(tmp_path: Path) -> None:
    """The public conformance suite passes."""
    check_backend(Registry().load("tvm_ffi"), EXAMPLE, tmp_path)


def test_describing_and_compiling_imports_neither_torch_nor_tvm_ffi(tmp_path: Path) -> None:
    """Compile workers stay light: devices, fingerprint and compile need no library that runs kernels."""
    code = """if True:
        import sys
        from pathlib import Path
        from ktuned.backends import Unit
        from ktuned_tvm_ffi import Build, TvmFfi
        backend, source, into = TvmFfi(), Path(sys.argv[1]), Path(sys.argv[2])
        backend.fingerprint()
        unit = Unit("key", Build("axpy", ()), (source,), source, "axpy", backend.devices()[0].target)
        (into / "key").mkdir()
        (result,) = backend.compile([unit], into)
        assert result.outcome is None, result.message
        print(sorted({"torch", "tvm_ffi", "numpy"} & sys.modules.keys()))
    """
    said = subprocess.run(
        [sys.executable, "-c", code, str(SOURCE), str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == "[]"


def test_an_artifact_holds_the_sources_and_the_headers_that_were_read(compile_one: Compile) -> None:
    """``sources/`` has the user's files, none of tvm-ffi's, and the facts have the command."""
    result, artifact = compile_one()
    assert sorted(path.name for path in (artifact / "sources").iterdir()) == ["axpy.cc", "axpy.h"]
    assert "-DTILE=8" in result.facts["command"][0].split()


def test_sources_of_several_directories_keep_their_places(compile_one: Compile, tmp_path: Path) -> None:
    """Several sources make one library; names with blanks and headers in other directories are kept as they are."""
    for directory in ("src", "my include"):
        (tmp_path / directory).mkdir()
    shutil.copy(SOURCE, tmp_path / "src" / "axpy.cc")
    shutil.copy(SOURCE.with_suffix(".h"), tmp_path / "my include" / "axpy.h")
    (tmp_path / "src" / "more.cpp").write_text("int more() { return 1; }\n")
    build = Build("axpy", ("x", "y", 3), flags=("-I../my include",))
    result, artifact = compile_one(build, tmp_path / "src" / "axpy.cc", tmp_path / "src" / "more.cpp")
    assert result.outcome is None, result.message
    found = {path.relative_to(artifact).as_posix() for path in artifact.rglob("*") if path.is_file()}
    assert found == {"kernel.so", "sources/src/axpy.cc", "sources/src/more.cpp", "sources/my include/axpy.h"}


def test_equal_sources_give_equal_bytes_wherever_they_are(
    compile_one: Compile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither place, nor time, nor the order of defines, nor a precompiled header shows in ``kernel.so``."""
    _, first = compile_one(Build("axpy", ("x", "y", 3), {"A": 1, "B": 2}))
    elsewhere = tmp_path / "else" / "where"
    elsewhere.mkdir(parents=True)
    for name in ("axpy.cc", "axpy.h"):
        shutil.copy(SOURCE.with_name(name), elsewhere)
    monkeypatch.setattr("ktuned_tvm_ffi.units.find_or_make_prelude", lambda *_: None)
    _, second = compile_one(Build("axpy", ("x", "y", 3), {"B": 2, "A": 1}), elsewhere / "axpy.cc")
    assert digest_file(first / "kernel.so") == digest_file(second / "kernel.so")


def test_what_the_compiler_refuses_starts_with_its_first_error(compile_one: Compile) -> None:
    """The message is the compiler's own, its first line the first error."""
    result, _ = compile_one(EXAMPLE.bad)
    assert result.outcome is Outcome.COMPILE_ERROR
    assert result.message.splitlines()[0] == 'axpy.h:7:2: error: #error "BROKEN is defined"'


def test_a_compilers_flood_of_words_is_capped() -> None:
    """However much a compiler says, the first error stays and the rest is cut."""
    said = "In file included from a\n" * 5000 + "a.cc:1: error: no\n" + "note\n" * 100_000
    kept = move_error_first(said, ERROR)
    assert kept.startswith("a.cc:1: error: no\nIn file")
    assert len(kept) == MAX_MESSAGE_CHARS


@pytest.mark.parametrize("name", ["U", "std", "Any"])
def test_a_macro_that_replaces_a_name_in_a_header_is_named_as_the_cause(
    name: str, compile_one: Compile, tmp_path: Path
) -> None:
    """The first line has the place where the macro was used, not that it came from the command line."""
    source = tmp_path / "it.cc"
    source.write_text(SOURCE.read_text().replace('"axpy.h"', f'"{SOURCE.with_name("axpy.h")}"'))
    result, _ = compile_one(Build("axpy", ("x", "y", 3), {name: 0}), source)
    first = result.message.splitlines()[0]
    assert re.match(r"[^<].*:\d+:\d+: error: .* \(is a name there also a macro in defines\?\)$", first), first


@pytest.mark.parametrize(
    ("build", "text", "message"),
    [
        (Build("missing", ()), None, "no source exports 'missing'"),
        (Build("axpy", (), flags=("-lno_such_library",)), None, "cannot find -lno_such_library"),
        (Build("axpy", (), flags=("--no-such-flag",)), None, "--no-such-flag"),
        (Build("axpy", ()), '#include "gone.h"', "gone.h: No such file"),
    ],
)
def test_each_way_of_not_building_is_a_result(
    build: Build, text: str | None, message: str, compile_one: Compile, tmp_path: Path
) -> None:
    """A missing export, a linker's, a driver's and a preprocessor's refusal are compile errors that say so."""
    source = SOURCE
    if text is not None:
        source = tmp_path / "source.cc"
        source.write_text(text)
    result, _ = compile_one(build, source)
    assert result.outcome is Outcome.COMPILE_ERROR
    assert message in result.message


def test_a_source_that_is_not_cxx_is_refused_by_name(compile_one: Compile, tmp_path: Path) -> None:
    """The driver would take an unknown suffix for a linker script."""
    result, _ = compile_one(EXAMPLE.good, tmp_path / "kernel.rs")
    assert (result.outcome, result.message.partition(":")[0]) == (Outcome.COMPILE_ERROR, "kernel.rs")


def test_another_cpus_target_is_unsupported(compile_one: Compile, tmp_path: Path) -> None:
    """What ``-march=native`` makes here is never passed off as another machine's, nor loaded from there."""
    result, _ = compile_one(target="native-elsewhere")
    assert result.outcome is Outcome.UNSUPPORTED
    unit = EXAMPLE.unit("key", EXAMPLE.good, "native-elsewhere")
    with pytest.raises(Unsupported, match="native-elsewhere"):
        TvmFfi().load(tmp_path, unit, cpu())


@pytest.mark.parametrize("name", ["a b", "1st", "x;y", ""])
def test_a_name_that_is_no_identifier_is_an_error_at_once(name: str) -> None:
    """Before anything is compiled, where the kernel function says it."""
    with pytest.raises(ValueError, match="identifier"):
        Build(name, ())
    with pytest.raises(ValueError, match="identifier"):
        Build("f", (), {name: 1})


def test_defines_become_macros() -> None:
    """True defines a name, False does not, all else is the macro's text."""
    build = Build("f", (), {"ON": True, "OFF": False, "N": 4, "X": 0.5, "V": "FAST"})
    assert build.macros == ("-DN=4", "-DON", "-DV=FAST", "-DX=0.5")


def test_configs_in_one_process_share_no_state(compile_one: Compile) -> None:
    """An inline function's static variable belongs to one library, even where GCC would make it the process's."""
    artifacts = [str(compile_one(Build("axpy", (), {"CONFIG": n}))[1] / "kernel.so") for n in (1, 2)]
    code = """if True:
        import sys
        sys.modules["torch"] = None
        import numpy, tvm_ffi
        one, two = (tvm_ffi.load_module(path) for path in sys.argv[1:])
        x, y = (tvm_ffi.from_dlpack(numpy.ones(1, "float32")) for _ in "xy")
        one.axpy(x, y, 1)
        print(one.count(), two.count(), one.file())
    """
    said = subprocess.run([sys.executable, "-c", code, *artifacts], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["1", "0", "axpy.cc", "Jan", "1", "1970", "00:00:00"]


class TestNoCompiler:
    """Without a compiler nothing breaks, and it is said."""

    def test_an_empty_path_is_an_absence_with_its_remedy(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """No compiler on the PATH is an absence with its remedy, and the fingerprint still reports the rest."""
        monkeypatch.setenv("PATH", str(tmp_path))
        found = TvmFfi().devices()
        assert isinstance(found, Absent)
        assert found.reason is Absence.NO_COMPILER
        assert found.hint == "apt install g++, or set CXX"
        assert TvmFfi().fingerprint()["compiler"] == "none"

    def test_a_cxx_that_does_not_exist_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """$CXX is obeyed: a wrong one is named, not passed over."""
        monkeypatch.setenv("CXX", "/nowhere/g++ -m64")
        found = TvmFfi().devices()
        assert isinstance(found, Absent)
        assert "/nowhere/g++ -m64" in found.message

    def test_compiling_without_a_compiler_is_a_backend_error(
        self, monkeypatch: pytest.MonkeyPatch, compile_one: Compile
    ) -> None:
        """A missing compiler must not be kept as the config's compile error."""
        target = cpu().target
        monkeypatch.setenv("CXX", "/nowhere/g++")
        with pytest.raises(BackendError, match="/nowhere"):
            compile_one(target=target)

    def test_a_full_disk_is_not_the_configs_fault(
        self, fake_compiler: Callable[[str], None], compile_one: Compile
    ) -> None:
        """What the compiler says about the disk is raised, not kept."""
        fake_compiler('echo "error: could not write /tmp/cc.o: No space left on device" >&2; exit 1')
        with pytest.raises(BackendError, match="No space left"):
            compile_one()

    def test_a_silent_compiler_error_has_a_message(
        self, fake_compiler: Callable[[str], None], compile_one: Compile
    ) -> None:
        """Even then there is a message."""
        fake_compiler("exit 3")
        result, _ = compile_one()
        assert result.outcome is Outcome.COMPILE_ERROR
        assert result.message.endswith("exited with 3 and no message")


class TestPrelude:
    """Precompiled headers: used, few, private, and never a reason to fail."""

    def headers(self, cache: Path) -> list[Path]:
        """Return the precompiled headers of a cache."""
        return sorted(cache.glob("tvm_ffi/*/prelude.hpp.gch"))

    def flags(self, *more: str) -> tuple[str, ...]:
        """Return what a unit with these flags is compiled with."""
        return (*STANDARD_FLAGS, *Compiler.find().dialect_flags, *more)

    def test_the_compiler_uses_the_precompiled_header(self, compile_one: Compile) -> None:
        """GCC names the precompiled header among those it reads, and finds it valid despite other macros."""
        result, _ = compile_one(Build("axpy", (), {"TILE": 2, "BROKEN": True}, ("-H", "-Winvalid-pch")))
        assert result.outcome is Outcome.COMPILE_ERROR
        assert any(line.startswith("! ") and line.endswith(".gch") for line in result.message.splitlines())

    def test_two_that_make_a_header_at_once_leave_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_compiler: Callable[[str], None]
    ) -> None:
        """Each waits in its compiler for the other; nothing half-made stays."""
        (tmp_path / "makers").mkdir()
        both_are_here = f'[ "$(ls {tmp_path}/makers | wc -l)" = 2 ]'
        fake_compiler(
            'while [ "$1" != -o ]; do shift; done\n'
            f"touch {tmp_path}/makers/$$; until {both_are_here}; do sleep 0.01; done\n"
            'echo header > "$2"'
        )
        monkeypatch.setenv("KTUNED_CACHE", str(tmp_path / "cache"))
        compiler, flags = Compiler.find(), self.flags()
        with ThreadPoolExecutor(2) as makers:
            made = set(makers.map(lambda _: prelude.find_or_make_prelude(compiler, flags), range(2)))
        (header,) = made
        assert header is not None
        assert self.headers(tmp_path / "cache") == [header.with_name("prelude.hpp.gch")]
        assert list((tmp_path / "cache").glob("tvm_ffi/making-*")) == []

    def test_only_the_last_used_headers_are_kept(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_compiler: Callable[[str], None]
    ) -> None:
        """Beyond the limit the least recently used goes; its text stays for a compiler that is about to read it."""
        fake_compiler('while [ "$1" != -o ]; do shift; done; echo header > "$2"')
        monkeypatch.setenv("KTUNED_CACHE", str(tmp_path / "cache"))
        made = []
        for number in range(prelude.MAX_PRECOMPILED + 2):
            path = prelude.find_or_make_prelude(Compiler.find(), self.flags(f"-DSET={number}"))
            assert path is not None
            os.utime(path.with_name("prelude.hpp.gch"), (number, number))
            made.append(path)
        kept = made[-prelude.MAX_PRECOMPILED :]
        assert self.headers(tmp_path / "cache") == sorted(path.with_name("prelude.hpp.gch") for path in kept)
        assert all(path.is_file() for path in made)

    def test_the_unfinished_header_of_a_killed_process_is_removed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_compiler: Callable[[str], None]
    ) -> None:
        """Old half-made ones are removed, those that may still be made are not."""
        fake_compiler('while [ "$1" != -o ]; do shift; done; echo header > "$2"')
        monkeypatch.setenv("KTUNED_CACHE", str(tmp_path))
        old, new = tmp_path / "tvm_ffi" / "making-old", tmp_path / "tvm_ffi" / "making-new"
        for path in (old, new):
            path.mkdir(parents=True)
        os.utime(old, (0, 0))
        prelude.find_or_make_prelude(Compiler.find(), self.flags())
        assert (old.exists(), new.exists()) == (False, True)

    def test_a_cache_that_others_may_write_is_not_used(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A cache directory that others may write is passed over, and compiling goes on without."""
        monkeypatch.setenv("KTUNED_CACHE", str(tmp_path))
        (tmp_path / "tvm_ffi").mkdir()
        (tmp_path / "tvm_ffi").chmod(0o777)
        assert prelude.find_or_make_prelude(Compiler.find(), self.flags()) is None

    def test_without_a_place_for_a_header_units_compile_all_the_same(
        self, compile_one: Compile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without a place for it a unit just compiles more slowly."""
        (tmp_path / "file").touch()
        monkeypatch.setenv("KTUNED_CACHE", str(tmp_path / "file"))
        result, _ = compile_one()
        assert result.outcome is None, result.message

    def test_clang_gets_no_precompiled_header(self) -> None:
        """Clang refuses, rather than passes over, a precompiled header that does not fit."""
        clang = replace(Compiler.find(), version="Debian clang version 14.0.6")
        assert prelude.find_or_make_prelude(clang, self.flags()) is None
        assert clang.dialect_flags == ()
