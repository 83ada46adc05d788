"""The state of a lane's process: a config's changes are undone, its own state is restored with it, the rest is
reported.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from ktuned.ipc import parent
from ktuned.worker import mapped_files
from ktuned.worker.mapped_files import MappedFiles
from ktuned.worker.process_state import ProcessState
from ktuned.worker.threading_libraries import ThreadingLibraries
from tests.fake_backend import pollution

_libm = ctypes.CDLL("libm.so.6")

RESTORED_KINDS = sorted(set(pollution.KINDS) - {"thread"})


@pytest.fixture
def state(tmp_path: Path) -> Iterator[ProcessState]:
    """The state of this process, which is restored at the end."""
    process_state = ProcessState()
    process_state.read_baseline([str(tmp_path / "artifacts")])
    process_state.complete_baseline()
    try:
        yield process_state
    finally:
        process_state.restore_baseline()


@pytest.mark.parametrize("kind", RESTORED_KINDS)
def test_what_a_config_changes_is_restored(state: ProcessState, kind: str) -> None:
    """The state is restored before the next config's check, without a fresh process."""
    with state.isolate_config("a"):
        pollution.KINDS[kind].pollute()
        assert not pollution.KINDS[kind].is_clean()
    assert pollution.KINDS[kind].is_clean()
    # The BLAS library keeps the thread that it started.
    assert not state.leftover or kind == "blas"


@pytest.mark.parametrize("kind", sorted({*RESTORED_KINDS} - {"timers"}))
def test_what_loading_changes_is_the_configs_own(state: ProcessState, kind: str) -> None:
    """The change applies whenever this config runs, although it loads only once, and never to another config."""
    pollutant = pollution.KINDS[kind]
    with state.isolate_config("a"), state.remember_changes_by_loading("a"):
        pollutant.pollute()
    assert pollutant.is_clean()
    with state.isolate_config("b"):
        assert pollutant.is_clean()
    with state.isolate_config("a"):
        assert not pollutant.is_clean()
    assert pollutant.is_clean()


def test_a_config_that_is_loaded_ahead_changes_nothing_for_the_one_that_runs(state: ProcessState) -> None:
    """The config that is loaded ahead does not inherit the running config's changes either."""
    rounding, directory = pollution.KINDS["rounding"], pollution.KINDS["directory"]
    with state.isolate_config("a"):
        with state.remember_changes_by_loading("a"):
            rounding.pollute()
        with state.record_loaded_state_ahead("b"):
            assert rounding.is_clean()
            directory.pollute()
        assert directory.is_clean()
        assert not rounding.is_clean()
    with state.isolate_config("b"):
        assert rounding.is_clean()
        assert not directory.is_clean()


def test_a_check_is_made_in_known_arithmetic(state: ProcessState) -> None:
    """The config's own arithmetic is restored for its next launch."""
    rounding = pollution.KINDS["rounding"]
    with state.isolate_config("a"):
        rounding.pollute()
        with state.use_known_arithmetic():
            assert rounding.is_clean()
        assert not rounding.is_clean()


def test_flush_to_zero_ends_with_its_config(state: ProcessState) -> None:
    """It ends in this thread and in the pool that a parallel operation started meanwhile."""
    tiny = torch.full((1 << 20,), 1e-40)
    with state.isolate_config("a"):
        assert torch.set_flush_denormal(True)
        assert not bool((tiny * 2).any())
    assert bool((tiny * 2).all())


def test_torchs_threads_and_default_dtype_are_restored(state: ProcessState) -> None:
    before = torch.get_num_threads()
    with state.isolate_config("a"):
        torch.set_num_threads(before + 1)
        torch.set_default_dtype(torch.float64)
    assert (torch.get_num_threads(), torch.get_default_dtype()) == (before, torch.float32)


def test_a_thread_left_behind_is_a_leftover(state: ProcessState) -> None:
    """The thread may take a core from all following configs."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    with state.isolate_config("a"):
        thread.start()
    end.set()
    thread.join()
    assert state.leftover == "it left a thread behind"


def leave_timer() -> None:
    timer = ctypes.c_void_p()
    assert ctypes.CDLL(None).timer_create(1, None, ctypes.byref(timer)) == 0


_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: None)


def leave_handler() -> None:
    """Install a handler as C does, which Python does not see."""
    ctypes.CDLL(None).signal(signal.SIGUSR2, _HANDLER)


_mappings: list[mmap.mmap] = []


def leave_mapping() -> None:
    with tempfile.TemporaryFile() as stream:
        stream.truncate(4096)
        _mappings.append(mmap.mmap(stream.fileno(), 4096))


@pytest.mark.parametrize(
    ("leave", "name"),
    [(leave_timer, "timer"), (leave_handler, "signal handler"), (leave_mapping, "shared mapping")],
)
def test_what_goes_on_in_the_process_is_a_leftover(state: ProcessState, leave: Callable[[], None], name: str) -> None:
    """A worker in which a config has left one is not used again."""
    before = signal.getsignal(signal.SIGUSR2)
    with state.isolate_config("a"):
        pass
    assert not state.leftover
    try:
        with state.isolate_config("b"):
            leave()
    finally:
        signal.signal(signal.SIGUSR2, before)
        while _mappings:
            _mappings.pop().close()
    assert state.leftover == f"it left a {name} behind"


def test_processes_of_a_config_end_with_it(state: ProcessState) -> None:
    """One that has detached itself is adopted by the worker; none takes a core from later configs."""
    parent.adopt_descendants()
    script = "setsid sleep 600 > /dev/null 2>&1 & echo $!; exec sleep 600"
    with state.isolate_config("a"):
        process = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        with process.stdout:
            detached = int(process.stdout.readline())
    assert state.leftover == "it left a process behind"
    assert not any(Path(f"/proc/{pid}").exists() for pid in (process.pid, detached))
    process.returncode = 0


def compile_library(path: Path, answer: int) -> Path:
    source = path.with_suffix(".c")
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text(f"int answer(void) {{ return {answer}; }}\n")
    new_file = path.with_suffix(".new")
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(new_file)], check=True)
    new_file.replace(path)
    return path


def test_a_library_of_the_project_is_a_leftover_and_an_artifact_is_not(
    state: ProcessState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The project's library keeps data that the next config would see; an artifact belongs to one config."""
    monkeypatch.setattr(mapped_files, "_list_generated_directories", tuple)
    state.read_baseline([str(tmp_path / "artifacts")])
    with state.isolate_config("a"):
        ctypes.CDLL(str(compile_library(tmp_path / "artifacts" / "kernel.so", 1)))
    assert not state.leftover
    own = compile_library(tmp_path / "own.so", 1)
    with state.isolate_config("b"):
        ctypes.CDLL(str(own))
    assert state.leftover == f"it loaded {own}"


@pytest.mark.parametrize("how", ["replaced", "written", "removed"])
def test_a_mapped_file_that_has_changed_is_named(state: ProcessState, tmp_path: Path, how: str) -> None:
    """The process still maps the old content."""
    path = tmp_path / "weights.bin"
    path.write_bytes(b"a" * 4096)
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ):
        with state.isolate_config("a"):
            pass
        assert not state.find_outdated_file()
        if how == "replaced":
            (tmp_path / "new").write_bytes(b"b" * 4096)
            (tmp_path / "new").replace(path)
        elif how == "written":
            path.write_bytes(b"b" * 4096)
            os.utime(path, (1, 1))
        else:
            path.unlink()
        assert state.find_outdated_file() == str(path)


def test_libraries_use_one_thread_for_a_while() -> None:
    """NumPy's library has its own number of threads before and afterwards."""
    pytest.importorskip("numpy")
    libraries = ThreadingLibraries()
    libraries.add_mapped_libraries(MappedFiles().list_mapped_files())
    counts = [setting for setting in libraries.settings if "openblas_get_num_threads" in setting.name]
    before = [count.read() for count in counts]
    with libraries.use_one_thread():
        assert [count.read() for count in counts] == [1] * len(before)
    assert [count.read() for count in counts] == before
