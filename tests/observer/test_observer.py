"""The observer below processes: what real children of it open, test, list, execute and read."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ktuned import observer
from ktuned.observer import library
from ktuned.observer.log import Kind, Log, Note

Observe = Callable[..., set[tuple[str, bool, str]]]


@pytest.fixture
def observe(tmp_path: Path) -> Observe:
    """Run a command below the observer; return what was noted, names below the directory relative to it."""
    work = (tmp_path / "work").resolve()
    work.mkdir()

    def run(*command: str, variables: dict[str, str] | None = None, rc: int = 0) -> set[tuple[str, bool, str]]:
        scratch = tmp_path / "scratch"
        shutil.rmtree(scratch, ignore_errors=True)
        found = observer.make_worker_variables(scratch, os.environ, [str(tmp_path)])
        assert found
        done = subprocess.run(
            command, cwd=work, env={**os.environ, **found, **(variables or {})}, capture_output=True, text=True
        )
        assert done.returncode == rc, done.stderr
        return {_named(note, work) for note in Log(found["KTUNED_OBSERVER"]).read_notes()}

    return run


def _named(note: Note, work: Path) -> tuple[str, bool, str]:
    return note.kind.value, note.is_found, note.name.removeprefix(f"{work}/")


def test_a_compilers_searches_are_noted_even_in_vain(observe: Observe, tmp_path: Path) -> None:
    """Headers that ``__has_include`` asks for, what an assembler includes, and libraries that are not there."""
    work = tmp_path / "work"
    (work / "a.h").write_text("int a;\n")
    (work / "blob.bin").write_text("x")
    text = '#if __has_include("b.h")\n#endif\n#include "a.h"\n__asm__(".incbin \\"blob.bin\\"");\n'
    (work / "k.c").write_text(text)
    found = observe("cc", "-shared", "-fPIC", "k.c", "-Llib", "-lnone", "-o", "k.so", rc=1)
    (work / "lib").mkdir()
    found |= observe("cc", "-shared", "-fPIC", "k.c", "-Llib", "-lnone", "-o", "k.so", rc=1)
    assert {("o", True, "a.h"), ("o", False, "b.h"), ("o", True, "blob.bin"), ("o", False, "lib/libnone.so")} <= found


SEES_MARKS = """
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int count, char **words, char **given) {
    int seen = getenv("KTUNED_DAEMON") || secure_getenv("KTUNED_WORKER");
    for (char **one = environ; *one; ++one) seen |= !strncmp(*one, "KTUNED_WORKER", 13);
    for (char **one = given; *one; ++one) seen |= !strncmp(*one, "KTUNED_DAEMON", 13);
    return seen ? 1 : system("env -i cat /proc/self/environ");
}
"""


@pytest.mark.parametrize("code", ["c", "python", "shell"])
def test_marks_are_hidden_from_code_and_kept_by_each_program(tmp_path: Path, code: str) -> None:
    """They are neither in ``getenv`` nor in ``environ``; children have them whatever environment they are given."""
    marks = {observer.DAEMON_MARK: "1-ab", observer.WORKER_MARK: "1-ab.w"}
    env = {**os.environ, **marks}
    env |= observer.make_worker_variables(tmp_path / "scratch", env, [str(tmp_path)])
    (tmp_path / "see.c").write_text(SEES_MARKS)
    subprocess.run(["cc", "-o", tmp_path / "see", tmp_path / "see.c"], check=True)
    python = f"""
import os, subprocess, sys
assert not {set(marks)} & set(os.environ)
subprocess.run(["cat", "/proc/self/environ"], env={{"KTUNED_WORKER": "another"}})
"""
    commands = {
        "c": [str(tmp_path / "see")],
        "python": [sys.executable, "-c", python],
        "shell": ["sh", "-c", "env | grep -E 'KTUNED_(DAEMON|WORKER)='; unset LD_PRELOAD; exec cat /proc/self/environ"],
    }
    done = subprocess.run(commands[code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = [entry for entry in done.stdout.split("\0") if entry.startswith(("KTUNED_DAEMON", "KTUNED_WORKER"))]
    assert sorted(found) == sorted(f"{name}={value}" for name, value in marks.items())


def test_a_child_with_an_environment_of_its_own_is_observed(observe: Observe) -> None:
    """Clearing the environment takes the observer from no child, nor does the way in which that is started."""
    script = """
import os, subprocess
subprocess.run(["cat", "one"], env={"PATH": os.environ["PATH"]}, stderr=subprocess.DEVNULL)
os.system("env -i cat two 2> /dev/null")
pid = os.posix_spawn("/bin/cat", ["cat", "three"], {}, file_actions=[(os.POSIX_SPAWN_CLOSE, 2)])
os.waitpid(pid, 0)
"""
    found = observe(sys.executable, "-c", script)
    assert {("o", False, name) for name in ("one", "two", "three")} <= found


def test_variables_that_c_code_reads_are_noted(observe: Observe, tmp_path: Path) -> None:
    """By ``getenv``, set or not."""
    program = '#include <stdlib.h>\nint main(void) { return getenv("ONE") && !getenv("TWO") ? 0 : 1; }\n'
    (tmp_path / "work" / "read.c").write_text(program)
    observe("cc", "read.c", "-o", "read")
    found = observe("./read", variables={"ONE": "1"})
    assert {("v", True, "ONE"), ("v", False, "TWO")} <= found


def test_the_loaders_searches_are_noted(observe: Observe, tmp_path: Path) -> None:
    """A library that an earlier directory of the search does not have is noted as absent there."""
    work = tmp_path / "work"
    for name in ("first", "second"):
        (work / name).mkdir()
    (work / "lib.c").write_text("int one(void) { return 0; }\n")
    (work / "main.c").write_text("int one(void);\nint main(void) { return one(); }\n")
    observe("cc", "-shared", "-fPIC", "lib.c", "-o", "second/libone.so")
    observe("cc", "main.c", "-Lsecond", "-lone", f"-Wl,-rpath,{work}/first:{work}/second", "-o", "main")
    found = observe("./main")
    assert {("s", False, "first/libone.so"), ("s", True, "second/libone.so"), ("m", True, "second/libone.so")} <= found


def test_a_program_that_others_can_write_does_not_run(observe: Observe, tmp_path: Path) -> None:
    """Be it named by a flag, found on a path or given to a shell."""
    wrapper = tmp_path / "work" / "wrapper"
    wrapper.write_text('#!/bin/sh\necho ran > ran\nexec "$@"\n')
    wrapper.chmod(0o777)
    (tmp_path / "work" / "k.c").write_text("int f(void) { return 0; }\n")
    scratch = tmp_path / "untrusting"
    found = observer.make_worker_variables(scratch, os.environ, [])
    command = ["cc", "-c", "-wrapper", str(wrapper), "k.c"]
    done = subprocess.run(command, cwd=tmp_path / "work", env={**os.environ, **found}, capture_output=True)
    assert done.returncode != 0
    assert not (tmp_path / "work" / "ran").exists()
    assert Kind.REFUSED in {note.kind for note in Log(found["KTUNED_OBSERVER"]).read_notes()}


def test_a_silent_log_notes_nothing(tmp_path: Path) -> None:
    """While a config is timed, nothing is noted."""
    found = observer.make_worker_variables(tmp_path / "scratch", os.environ, [])
    log = Log(found["KTUNED_OBSERVER"])
    log.set_silent(True)
    subprocess.run(["cat", "nothing"], env={**os.environ, **found}, capture_output=True, cwd=tmp_path)
    assert list(log.read_notes()) == []
    log.set_silent(False)
    subprocess.run(["cat", "nothing"], env={**os.environ, **found}, capture_output=True, cwd=tmp_path)
    assert any(note.name.endswith("/nothing") for note in log.read_notes())


def test_each_name_is_noted_once_in_an_epoch(tmp_path: Path) -> None:
    """Whoever asks, and how often; in the next epoch it is noted again."""
    found = observer.make_worker_variables(tmp_path / "scratch", os.environ, [])
    log = Log(found["KTUNED_OBSERVER"])
    counts = []
    for _ in range(2):
        log.begin_epoch()
        for _ in range(3):
            subprocess.run(["cat", "nothing"], env={**os.environ, **found}, capture_output=True, cwd=tmp_path)
        counts.append(sum(note.name.endswith("/nothing") for note in log.read_notes()))
    assert counts == [1, 1]


def test_without_a_compiler_a_worker_is_not_observed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There are no settings then, and the reason is known."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    observer.build_library.cache_clear()
    try:
        assert observer.make_worker_variables(tmp_path / "scratch", os.environ, []).keys() == {observer.REASON_VARIABLE}
        with pytest.raises(observer.LibraryUnavailable, match="no C compiler"):
            observer.build_library()
    finally:
        observer.build_library.cache_clear()


def test_workers_that_start_together_wait_for_one_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon's first job starts a worker for each core, and a compile takes a second."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    compiled: list[Path] = []

    def compile_and_count(place: Path) -> None:
        compiled.append(place)
        compile_library(place)

    compile_library = library._compile_library
    monkeypatch.setattr(library, "_compile_library", compile_and_count)
    observer.build_library.cache_clear()
    try:
        with ThreadPoolExecutor(4) as threads:
            for start in [threads.submit(observer.prepare_library) for _ in range(4)]:
                start.result()
        assert compiled == [observer.build_library()]
    finally:
        observer.build_library.cache_clear()


def test_a_variable_switches_the_observer_off(tmp_path: Path) -> None:
    """By a variable, which a root may set for its workers."""
    found = observer.make_worker_variables(tmp_path / "scratch", {observer.OFF_VARIABLE: "1"}, [])
    assert found.keys() == {observer.REASON_VARIABLE}


def test_a_connection_is_noted_and_a_failed_one_is_an_absent_name(observe: Observe, tmp_path: Path) -> None:
    """A driver looks for helpers that are not there: no other program has answered then."""
    program = (
        "import socket\n"
        "server = socket.socket(socket.AF_UNIX); server.bind('here'); server.listen()\n"
        "import os; here = os.path.abspath('here'); none = os.path.abspath('none')\n"
        "socket.socket(socket.AF_UNIX).connect(here)\n"
        "try: socket.socket(socket.AF_UNIX).connect(none)\n"
        "except FileNotFoundError: pass\n"
    )
    found = observe(sys.executable, "-S", "-c", program)
    assert ("c", True, "here") in found
    assert ("t", False, "none") in found
    assert not [note for note in found if note[0] == "h"]


@pytest.mark.parametrize(
    ("code", "note"),
    [
        ("import ctypes; ctypes.CDLL('libc.so.6').open(b'here', 0)", ("o", True, "here")),
        ("import ctypes; ctypes.CDLL('libc.so.6').getenv(b'ONE')", ("v", False, "ONE")),
        ("open('here', 'a').close(); open('here').close()", ("o", True, "here")),
        ("import os; os.symlink('here', 'link'); open('link').close()", ("o", True, "here")),
        ("import os; os.link('here', 'link'); open('link').close()", ("o", True, "here")),
        ("import os; os.rename('here', 'there'); open('there').close()", ("r", True, "here")),
        ("import subprocess; subprocess.run(['./script'])", ("x", True, "interpreter")),
        ("import os; os.system('true')", ("e", True, "")),
        (
            (
                "import os; OPEN = os.POSIX_SPAWN_OPEN\n"
                "os.posix_spawn('/bin/true', ['true'], {}, file_actions=[(OPEN, 0, 'here', 0, 0)])"
            ),
            ("o", True, "here"),
        ),
        ("import os\ntry: os.mkdir('here')\nexcept OSError: pass", ("t", True, "here")),
        ("import os\ntry: os.getxattr('here', 'user.x')\nexcept OSError: pass", ("t", True, "here")),
        ("import time; time.localtime()", ("v", False, "TZ")),
    ],
)
def test_ways_around_the_usual_calls_leave_notes(
    observe: Observe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, note: tuple[str, bool, str]
) -> None:
    monkeypatch.delenv("TZ", raising=False)
    work = tmp_path / "work"
    (work / "here").write_text("1")
    shutil.copy("/bin/true", work / "interpreter")
    (work / "script").write_text(f"#!{work}/interpreter\n")
    (work / "script").chmod(0o755)
    assert note in observe(sys.executable, "-S", "-c", code)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import ctypes; ctypes.CDLL(None).wordexp(b'x', b' ' * 99, 0)", "wordexp"),
        ("import ctypes; ctypes.CDLL('libm.so.6', mode=8 | 2)", "RTLD_DEEPBIND"),
        ("import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'', ('127.0.0.1', 9))", "another program"),
    ],
)
def test_leaving_the_observers_scope_is_noted(observe: Observe, code: str, reason: str) -> None:
    assert any(kind == "h" and reason in name for kind, _, name in observe(sys.executable, "-S", "-c", code))


def test_a_worker_that_is_not_observed_says_what_is_missing(tmp_path: Path) -> None:
    """The log alone is no proof: nobody writes to this one."""
    observer.Log.create(tmp_path / "log")
    assert "does not see this worker's tests of files, opened files, variables, children" in observer.prove_observed(
        Log(str(tmp_path / "log"))
    )


def test_a_child_may_be_started_unobserved(observe: Observe, tmp_path: Path) -> None:
    """A referee starts candidates so: what they read is no part of a kernel, and they have no access to the log."""
    for name in ("seen", "unseen", "also"):
        (tmp_path / "work" / name).touch()
    found = observe("sh", "-c", f"cat seen; env -i {library.OFF_VARIABLE}=1 cat unseen; env -i cat also")
    assert {("o", True, "seen"), ("o", True, "also")} <= found
    assert ("o", True, "unseen") not in found
