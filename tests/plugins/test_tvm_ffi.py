"""The tvm_ffi backend: the conformance suite, and its own features."""

import itertools
import os
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from ktuned import backends
from ktuned.backends.contract import Absence, Absent, Compiled, Unit
from ktuned.backends.registry import Registry
from ktuned.ipc.manifest import digest_file
from ktuned.model.device import Device
from ktuned.model.errors import BackendError, Unsupported
from ktuned.model.values import Outcome
from ktuned.testing.backends import check_backend
from ktuned_tvm_ffi import Build, TvmFfi, prelude
from ktuned_tvm_ffi.compiler import STANDARD_FLAGS, Compiler
from tests.plugins.axpy import EXAMPLE, SOURCE
from tests.plugins.examples_on_gpus import run_python

Compile = Callable[..., tuple[Compiled, Path]]


def find_cpu() -> Device:
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
        unit = Unit(key, build, sources or (SOURCE,), SOURCE, "axpy", target or find_cpu().target)
        (result,) = TvmFfi().compile([unit], tmp_path)
        return result, tmp_path / key

    return compile_one


@pytest.fixture
def install_fake_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A function that makes a shell script the compiler: it knows its version and then runs ``body``."""

    def install(body: str) -> None:
        script = tmp_path / "fake-cxx"
        script.write_text(f'#!/bin/sh\n[ "$1" = --version ] && {{ echo "fake 1.0"; exit 0; }}\n{body}\n')
        script.chmod(0o755)
        monkeypatch.setenv("CXX", str(script))

    return install


def test_the_backend_passes_the_conformance_suite(tmp_path: Path) -> None:
    check_backend(Registry().load("tvm_ffi"), EXAMPLE, tmp_path)


def test_describing_and_compiling_imports_neither_torch_nor_tvm_ffi(tmp_path: Path) -> None:
    """Compile workers stay small: devices, fingerprint and compilation need no library that runs kernels."""
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
    assert run_python(code, str(SOURCE), str(tmp_path)) == "[]"


def test_an_artifact_holds_the_sources_and_the_headers_that_were_read(compile_one: Compile) -> None:
    """``sources/`` has the user's files, but none of tvm-ffi's; the facts have the command."""
    result, artifact = compile_one()
    assert sorted(path.name for path in (artifact / "sources").iterdir()) == ["axpy.cc", "axpy.h"]
    assert "-DTILE=8" in result.facts["command"][0].split()


def test_sources_of_several_directories_keep_their_places(compile_one: Compile, tmp_path: Path) -> None:
    """Several sources make one library; names with blanks and headers in other directories keep their paths."""
    for directory in ("src", "my include"):
        (tmp_path / directory).mkdir()
    shutil.copy(SOURCE, tmp_path / "src" / "axpy.cc")
    shutil.copy(SOURCE.with_suffix(".h"), tmp_path / "my include" / "axpy.h")
    (tmp_path / "src" / "more.cpp").write_text("int more() { return 1; }\n")
    build = Build("axpy", ("x", "y", 3), flags=("-I../my include",))
    result, artifact = compile_one(build, tmp_path / "src" / "axpy.cc", tmp_path / "src" / "more.cpp")
    assert result.outcome is None, result.message
    files = {path.relative_to(artifact).as_posix() for path in artifact.rglob("*") if path.is_file()}
    assert files == {"kernel.so", "sources/src/axpy.cc", "sources/src/more.cpp", "sources/my include/axpy.h"}


def test_equal_sources_give_equal_bytes_wherever_they_are(
    compile_one: Compile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes depend on neither the directory, the time, the order of defines nor a precompiled header."""
    _, first_artifact = compile_one(Build("axpy", ("x", "y", 3), {"A": 1, "B": 2}))
    other_directory = tmp_path / "else" / "where"
    other_directory.mkdir(parents=True)
    for name in ("axpy.cc", "axpy.h"):
        shutil.copy(SOURCE.with_name(name), other_directory)
    monkeypatch.setattr("ktuned_tvm_ffi.units.find_or_make_prelude", lambda *_: None)
    _, second_artifact = compile_one(Build("axpy", ("x", "y", 3), {"B": 2, "A": 1}), other_directory / "axpy.cc")
    assert digest_file(first_artifact / "kernel.so") == digest_file(second_artifact / "kernel.so")


def test_what_the_compiler_refuses_starts_with_its_first_error(compile_one: Compile) -> None:
    """The message is the compiler's own."""
    result, _ = compile_one(EXAMPLE.bad)
    assert result.outcome is Outcome.COMPILE_ERROR
    assert result.message.splitlines()[0] == 'axpy.h:7:2: error: #error "BROKEN is defined"'


@pytest.mark.parametrize("name", ["U", "std", "Any"])
def test_a_macro_that_replaces_a_name_in_a_header_is_named_as_the_cause(
    name: str, compile_one: Compile, tmp_path: Path
) -> None:
    """The first line names the place where the macro was used, not the command line."""
    source = tmp_path / "it.cc"
    source.write_text(SOURCE.read_text().replace('"axpy.h"', f'"{SOURCE.with_name("axpy.h")}"'))
    result, _ = compile_one(Build("axpy", ("x", "y", 3), {name: 0}), source)
    first_line = result.message.splitlines()[0]
    cause = r"[^<].*:\d+:\d+: error: .* \(does a macro in defines have the same name\?\)$"
    assert re.match(cause, first_line), first_line


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
    """Errors of the export, linker, driver and preprocessor are compile errors with a message."""
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
    """Code for one CPU is never compiled or loaded as another machine's."""
    result, _ = compile_one(target="native-elsewhere")
    assert result.outcome is Outcome.UNSUPPORTED
    unit = EXAMPLE.unit("key", EXAMPLE.good, "native-elsewhere")
    with pytest.raises(Unsupported, match="native-elsewhere"):
        TvmFfi().load(tmp_path, unit, find_cpu())


@pytest.mark.parametrize("name", ["a b", "1st", "x;y", ""])
def test_a_name_that_is_no_identifier_is_an_error_at_once(name: str) -> None:
    """The error comes from the kernel function."""
    with pytest.raises(ValueError, match="identifier"):
        Build(name, ())
    with pytest.raises(ValueError, match="identifier"):
        Build("f", (), {name: 1})


def test_defines_become_macros() -> None:
    """True defines a name, False does not, and any other value is the macro's text."""
    build = Build("f", (), {"ON": True, "OFF": False, "N": 4, "X": 0.5, "V": "FAST"})
    assert build.macros == ("-DN=4", "-DON", "-DV=FAST", "-DX=0.5")


def test_configs_in_one_process_share_no_state(compile_one: Compile) -> None:
    """An inline function's static variable belongs to one library, even where GCC would share it in the process."""
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
    assert run_python(code, *artifacts).split() == ["1", "0", "axpy.cc", "Jan", "1", "1970", "00:00:00"]


class TestNoCompiler:
    """Without a compiler nothing breaks, and messages say so."""

    def test_an_empty_path_is_an_absence_with_its_remedy(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """The fingerprint still reports the rest."""
        monkeypatch.setenv("PATH", str(tmp_path))
        absence = TvmFfi().devices()
        assert isinstance(absence, Absent)
        assert absence.reason is Absence.NO_COMPILER
        assert absence.hint == "apt install g++, or set CXX"
        assert TvmFfi().fingerprint()["compiler"] == "none"

    def test_a_cxx_that_does_not_exist_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A wrong $CXX is named, not ignored."""
        monkeypatch.setenv("CXX", "/nowhere/g++ -m64")
        absence = TvmFfi().devices()
        assert isinstance(absence, Absent)
        assert "/nowhere/g++ -m64" in absence.message

    def test_compiling_without_a_compiler_is_a_backend_error(
        self, monkeypatch: pytest.MonkeyPatch, compile_one: Compile
    ) -> None:
        """It must not be recorded as the config's compile error."""
        target = find_cpu().target
        monkeypatch.setenv("CXX", "/nowhere/g++")
        with pytest.raises(BackendError, match="/nowhere"):
            compile_one(target=target)

    def test_a_full_disk_is_not_the_configs_fault(
        self, install_fake_compiler: Callable[[str], None], compile_one: Compile
    ) -> None:
        """The compiler's message about the disk is raised, not recorded."""
        install_fake_compiler('echo "error: could not write /tmp/cc.o: No space left on device" >&2; exit 1')
        with pytest.raises(BackendError, match="No space left"):
            compile_one()

    def test_a_silent_compiler_error_has_a_message(
        self, install_fake_compiler: Callable[[str], None], compile_one: Compile
    ) -> None:
        install_fake_compiler("exit 3")
        result, _ = compile_one()
        assert result.outcome is Outcome.COMPILE_ERROR
        assert result.message.endswith("exited with 3 and no message")


class TestPrelude:
    """Precompiled headers are used, few and private, and never cause a failure."""

    def list_headers(self, cache: Path) -> list[Path]:
        """Return the precompiled headers of a cache."""
        return sorted(cache.glob("tvm_ffi/*/prelude.hpp.gch"))

    def make_flags(self, *more: str) -> tuple[str, ...]:
        """Return the flags with which a unit with additional flags is compiled."""
        return (*STANDARD_FLAGS, *Compiler.find().dialect_flags, *more)

    def test_the_compiler_uses_the_precompiled_header(self, compile_one: Compile) -> None:
        """GCC lists it among the files that it reads, and accepts it despite other macros."""
        result, _ = compile_one(Build("axpy", (), {"TILE": 2, "BROKEN": True}, ("-H", "-Winvalid-pch")))
        assert result.outcome is Outcome.COMPILE_ERROR
        assert any(line.startswith("! ") and line.endswith(".gch") for line in result.message.splitlines())

    def test_two_threads_that_make_a_header_at_once_leave_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, install_fake_compiler: Callable[[str], None]
    ) -> None:
        """Each compiler waits for the other; no unfinished header stays."""
        (tmp_path / "makers").mkdir()
        both_are_here = f'[ "$(ls {tmp_path}/makers | wc -l)" = 2 ]'
        install_fake_compiler(
            'while [ "$1" != -o ]; do shift; done\n'
            f"touch {tmp_path}/makers/$$; until {both_are_here}; do sleep 0.01; done\n"
            'echo header > "$2"'
        )
        monkeypatch.setenv("KTUNED_CACHE", str(tmp_path / "cache"))
        compiler, flags = Compiler.find(), self.make_flags()
        with ThreadPoolExecutor(2) as pool:
            headers = set(pool.map(lambda _: prelude.find_or_make_prelude(compiler, flags), range(2)))
        (header,) = headers
        assert header is not None
        assert self.list_headers(tmp_path / "cache") == [header.with_name("prelude.hpp.gch")]
        assert list((tmp_path / "cache").glob("tvm_ffi/making-*")) == []

    def test_only_the_last_used_headers_are_kept(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, install_fake_compiler: Callable[[str], None]
    ) -> None:
        """Beyond the limit the least recently used is removed; its text stays for a compiler that is about to read
        it.
        """
        install_fake_compiler('while [ "$1" != -o ]; do shift; done; echo header > "$2"')
        monkeypatch.setenv("KTUNED_CACHE", str(tmp_path / "cache"))
        headers = []
        for number in range(prelude.MAX_PRECOMPILED + 2):
            path = prelude.find_or_make_prelude(Compiler.find(), self.make_flags(f"-DSET={number}"))
            assert path is not None
            os.utime(path.with_name("prelude.hpp.gch"), (number, number))
            headers.append(path)
        kept_headers = headers[-prelude.MAX_PRECOMPILED :]
        assert self.list_headers(tmp_path / "cache") == sorted(
            path.with_name("prelude.hpp.gch") for path in kept_headers
        )
        assert all(path.is_file() for path in headers)

    def test_the_unfinished_header_of_a_killed_process_is_removed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, install_fake_compiler: Callable[[str], None]
    ) -> None:
        """Recent unfinished headers stay, because another process may still be making them."""
        install_fake_compiler('while [ "$1" != -o ]; do shift; done; echo header > "$2"')
        monkeypatch.setenv("KTUNED_CACHE", str(tmp_path))
        old, new = tmp_path / "tvm_ffi" / "making-old", tmp_path / "tvm_ffi" / "making-new"
        for path in (old, new):
            path.mkdir(parents=True)
        os.utime(old, (0, 0))
        prelude.find_or_make_prelude(Compiler.find(), self.make_flags())
        assert (old.exists(), new.exists()) == (False, True)

    def test_a_cache_that_others_may_write_is_not_used(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Compilation continues without the cache."""
        monkeypatch.setenv("KTUNED_CACHE", str(tmp_path))
        (tmp_path / "tvm_ffi").mkdir()
        (tmp_path / "tvm_ffi").chmod(0o777)
        assert prelude.find_or_make_prelude(Compiler.find(), self.make_flags()) is None

    def test_without_a_place_for_a_header_units_compile_all_the_same(
        self, compile_one: Compile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Compilation is only slower."""
        (tmp_path / "file").touch()
        monkeypatch.setenv("KTUNED_CACHE", str(tmp_path / "file"))
        result, _ = compile_one()
        assert result.outcome is None, result.message

    def test_clang_gets_no_precompiled_header(self) -> None:
        """Clang fails on a precompiled header that does not fit, instead of ignoring it."""
        clang = replace(Compiler.find(), version="Debian clang version 14.0.6")
        assert prelude.find_or_make_prelude(clang, self.make_flags()) is None
        assert clang.dialect_flags == ()
