"""Functions that no import finds are lowered in the application, in the background, and compiled elsewhere."""

import json
import linecache
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from ktuned.backends import Compiled, Unit
from ktuned.dropin import RECORDED, Answer, CallRecord, account
from ktuned.ipc import decoding
from ktuned.model.values import Outcome
from ktuned.spool import CALLS, TEXTS_SUFFIX
from ktuned_triton import Triton, application_lowering, autotune, compiler
from ktuned_triton.application_lowering import SHARE, BackgroundLowering
from ktuned_triton.build import Build, Library
from ktuned_triton.call import Call
from ktuned_triton.keyed_call import BEING_LOWERED
from ktuned_triton.lowering import Lowered
from ktuned_triton.signature import make_call_arguments
from tests.fake_daemon_link import FakeDaemonLink
from tests.plugins.triton_app import kernels
from tests.plugins.triton_calls import Launches, clean_account, link, records, spool

__all__ = ["clean_account", "link", "spool"]

SIZE = 1024
BLOCKS = 64, 128, 256

SOURCE = """\
import triton
import triton.language as tl

@triton.jit
def scale(x, y, n, BLOCK: tl.constexpr, FUNCTION: tl.constexpr):
    tl.static_assert(BLOCK < 256, "too large")
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, FUNCTION(tl.load(x + at, mask=at < n)), mask=at < n)

def make_function():
    @triton.jit
    def half(x):
        return x * 0.5
    return half
"""


def execute(text: str) -> dict[str, Any]:
    """Run a text as a notebook runs a cell; return its names."""
    file, names = "<cell 1>", {}  # type: ignore[var-annotated]
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    exec(compile(text, file, "exec"), names)
    return names


class Cell:
    """A notebook's kernel: an autotuned function that ``exec`` has made, and a closure that is among its constants."""

    def __init__(self) -> None:
        names = execute(SOURCE)
        configs = [triton.Config({"BLOCK": block}, num_warps=warps) for block in BLOCKS for warps in (4, 8)]
        self.function = autotune(configs, key=["n"], without_daemon="first")(names["scale"])
        self._half = names["make_function"]()

    def call(self, n: int = SIZE) -> None:
        """Call the kernel."""
        x = torch.ones(n)
        self.function[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, torch.empty_like(x), n, FUNCTION=self._half)


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Have Triton compile for a GPU that is not here; return the blocks of launches, which launch nothing."""
    launched: Launches = []
    original = JITFunction.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if "_call_hook" in vars(self):
            # The copy whose compiler stops.
            return original(self, *args, **kwargs)
        return None if kwargs["warmup"] else launched.append(kwargs["BLOCK"])

    monkeypatch.setattr(JITFunction, "run", run)
    driver.set_active(compiler._AbsentDriver(90))
    yield launched
    driver.set_active(None)


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the blocks that are lowered here, in order."""
    found: list[int] = []
    original = compiler.lower_function

    def lower_function(function: Any, arguments: Any, build: Build) -> bytes:
        found.append(arguments["BLOCK"])
        return original(function, arguments, build)

    monkeypatch.setattr(compiler, "lower_function", lower_function)
    return found


class Start(BackgroundLowering):
    """One start of a program, whose thread rests for no time.

    Attributes:
        worked_s: the seconds of work after which it has rested.
        ends_after: number of configs after which the program ends.
    """

    def __init__(self, ends_after: int = 1000) -> None:
        super().__init__()
        self.worked_s: list[float] = []
        self.ends_after = ends_after

    def _rest(self, worked_s: float) -> bool:
        self.worked_s.append(worked_s)
        return len(self.worked_s) < self.ends_after

    def join(self) -> None:
        """Wait until all calls are lowered."""
        while (thread := self._thread) is not None:
            thread.join()


def start(monkeypatch: pytest.MonkeyPatch, ends_after: int = 1000) -> Start:
    """Begin a start of the program."""
    account.keys.clear()
    begun = Start(ends_after)
    monkeypatch.setattr(application_lowering, "background_lowering", begun)
    return begun


def lower_elsewhere(record: CallRecord, directory: Path) -> dict[tuple[int, int], bytes | Compiled]:
    """Return what a front end gives to compile workers for each config of a record, by block and warps."""
    (directory / CALLS).mkdir(exist_ok=True)
    for name, content in record.files.items():
        (directory / CALLS / name).write_bytes(content)
    call = decoding.convert(json.loads(record.call), Call)
    found: dict[tuple[int, int], bytes | Compiled] = {}
    for text, recipe in call.recipes.items():
        build = Build.from_plain(call.make_build(text, "scale", library=Library()).to_plain())
        unit = Unit("it", build, (), directory / "tune_it.py", "it", "sm_90a")
        Triton().open_library(Library().to_plain(), build)
        found[build.constants["BLOCK"], recipe.sizes["num_warps"]] = Triton().lower(unit)
    return found


def test_the_record_has_the_texts_from_which_another_process_compiles(
    link: FakeDaemonLink, spool: Path, gpu: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The call launches the first config at once; a config that the front end rejects has its error."""
    begun, cell = start(monkeypatch), Cell()
    cell.call()
    assert gpu == [64]
    begun.join()
    assert list(account.keys.values()) == [RECORDED]
    assert account.left_alone == {}
    (record,) = records(spool)
    driver.set_active(None)
    found = lower_elsewhere(record, tmp_path)
    assert [type(found[block, 4]) for block in BLOCKS] == [bytes, bytes, Compiled]
    refused = found[256, 8]
    assert isinstance(refused, Compiled)
    assert (refused.outcome, "too large" in refused.message) == (Outcome.COMPILE_ERROR, True)
    text = found[128, 8]
    assert isinstance(text, bytes)
    (tmp_path / "it").mkdir()
    unit = Unit("it", Build("scale", ("x", "y", SIZE), grid=(8,)), (), tmp_path / "no.py", "it", "sm_90a", text)
    (result,) = Triton().compile([unit], tmp_path)
    assert result.outcome is None, result.message
    assert (result.facts["function"], result.facts["threads"]) == ("scale", 256)


def test_the_text_is_that_of_a_front_end(link: FakeDaemonLink, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the machine code has the key under which the application's Triton looks for it."""
    function = kernels.stretch.fn
    build = Build(
        "tests.plugins.triton_app.kernels:stretch",
        ("x", "y", SIZE, 2.0),
        {"BLOCK": 128},
        dtypes={"x": "float32", "y": "float32"},
        library=Library("tests"),
    )
    theirs = Triton().lower(Unit("it", build, (), Path("/absent"), "it", "sm_90a"))
    driver.set_active(compiler._AbsentDriver(90))
    ours = compiler.lower_function(function, make_call_arguments(function, build, Path()), build)
    assert isinstance(theirs, bytes)
    assert Lowered.from_bytes(ours) == Lowered.from_bytes(theirs)


def test_what_a_program_does_not_finish_its_next_start_finishes(
    link: FakeDaemonLink, spool: Path, lowered: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No config is lowered twice, and the summary says what is left."""
    for ends_after, left in ((2, [BEING_LOWERED]), (3, [BEING_LOWERED]), (1000, [RECORDED])):
        begun = start(monkeypatch, ends_after)
        Cell().call()
        begun.join()
        assert list(account.keys.values()) == left
    assert lowered == [64, 64, 128, 128, 256, 256]
    (record,) = records(spool)
    assert len(record.files) == 6 - 1  # The two errors are equal.
    assert list(spool.glob(f"*{TEXTS_SUFFIX}")) == []


def test_damaged_texts_are_made_again(
    link: FakeDaemonLink, spool: Path, lowered: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever another process has written."""
    begun = start(monkeypatch, 2)
    Cell().call()
    begun.join()
    (file,) = spool.glob(f"*{TEXTS_SUFFIX}")
    file.write_bytes(b"\xc1")
    begun = start(monkeypatch)
    Cell().call()
    begun.join()
    assert len(lowered) == 2 + 6
    assert len(records(spool)) == 1


def test_a_winner_that_arrives_ends_it(
    link: FakeDaemonLink, spool: Path, lowered: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process has left the call."""
    begun = start(monkeypatch)
    cell, is_called, is_followed = Cell(), threading.Event(), []

    def rest(worked_s: float) -> bool:
        assert is_called.wait(60)
        ((_, on_answer),) = link.followed_keys
        (call,) = cell.function.__dict__["_ktuned"]._calls.values()
        is_followed.append(on_answer(Answer(call.machine.configs[2], is_final=True)))
        return True

    monkeypatch.setattr(begun, "_rest", rest)
    cell.call()
    is_called.set()
    begun.join()
    assert lowered == [64]
    assert is_followed == [False]
    assert records(spool) == []


def test_a_call_that_waits_lowers_at_once(
    link: FakeDaemonLink, spool: Path, lowered: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record is there before it waits."""
    begun, cell = start(monkeypatch), Cell()
    cell.function.__dict__["_ktuned_policy"] = replace(cell.function.__dict__["_ktuned_policy"], mode="wait")
    cell.call()
    assert (len(lowered), len(records(spool)), begun.worked_s) == (6, 1, [])


def test_a_function_that_is_made_again_and_again_is_lowered_once(
    link: FakeDaemonLink, spool: Path, lowered: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A closure in a loop is another object each time."""
    begun = start(monkeypatch)
    for _ in range(3):
        Cell().call()
        begun.join()
    assert len(lowered) == 6
    assert len(records(spool)) == 1


def test_the_thread_rests_for_nineteen_times_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """It works for its share of the time."""
    lowering = BackgroundLowering()
    waits: list[float] = []
    monkeypatch.setattr(lowering._is_ending, "wait", waits.append)
    assert lowering._rest(0.05)
    assert waits == pytest.approx([0.05 / SHARE - 0.05])


ENDING = """\
import os, sys
import torch, triton
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction
from ktuned_triton import application_lowering, compiler
from tests.plugins.test_triton_application_lowering import Cell

driver.set_active(compiler._AbsentDriver(90))
original = JITFunction.run
JITFunction.run = lambda self, *args, **kwargs: original(self, *args, **kwargs) if "_call_hook" in vars(self) else None
application_lowering.SHARE = 1.0
for n in range(1, 40):
    Cell().call(16 * n)
if os.fork() == 0:
    Cell().call(8)
    sys.exit(3)
print("child", os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_a_program_that_ends_in_the_middle_ends_well(spool: Path, tmp_path: Path) -> None:
    """So does a child that it has forked; both had many configs left."""
    ended = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", ENDING],
        env={**os.environ, "KTUNED_HOME": str(tmp_path / "home"), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "child 3\n", "")
    assert list(spool.glob(f"*{TEXTS_SUFFIX}")) != []
