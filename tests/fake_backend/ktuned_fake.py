"""A backend whose kernels do what their Build says: take a time, crash, hang, err. Compiles in no time.

It is found through its own ``dist-info`` when this directory is on ``PYTHONPATH``. With ``FAKE_GATE`` set to a
directory, a compile or a launch whose ``gate`` is named waits until a file of that name exists there, after it
left ``<name>.reached``: so a test knows where a config is, and decides when it goes on.

Its device counts the energy that its Builds say they take, in steps, unless ``FAKE_ENERGY`` is ``0``.

With ``FAKE_TENSORS=numpy`` its tensors are NumPy's, see :mod:`without_torch`.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import importlib
import itertools
import json
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import without_torch  # noqa: F401 - its import is its effect

from ktuned.backends.contract import Absence, Absent, Backend, Compiled, EnergyCounter, Kernel, Launch, Unit
from ktuned.backends.contract import Build as AnyBuild
from ktuned.backends.programs import on_path
from ktuned.dependencies import ACCESSES
from ktuned.model.device import Device
from ktuned.model.errors import BackendError, Unsupported
from ktuned.model.keys import DeviceModel, DeviceName, Target
from ktuned.model.values import Outcome

_MUCH = bytes(1_000_000)

STEP_J = 0.01
"""The resolution of the energy counter."""


@dataclass(frozen=True)
class Build(AnyBuild):
    """``does`` at ``compile`` or at ``launch``; otherwise ``y = 2 x`` in about ``us`` µs, for so many ``joules``.

    Without tensors it only takes its time; one that ``rests`` needs no core meanwhile, as a GPU's kernel.

    ``every`` is how many launches there are of which one is wrong, where it is ``seldom_wrong`` or ``regularly_wrong``,
    or from which on they are. ``reads`` is a file beside the kernel file that the compiler reads; its text is a part of
    the artifact, without comments. ``library`` has the ``module`` that its function is below, and the ``path`` where
    that is found; ``submodule`` is its own one.
    """

    backend: ClassVar[str] = "fake"
    us: float = 50.0
    does: str = "work"
    gate: str = ""
    tag: str = ""
    reads: str = ""
    joules: float = 0.001
    rests: bool = False
    every: int = 20
    library: Mapping[str, Any] | None = None
    submodule: str = ""

    @property
    def tensors(self) -> tuple[str, ...]:
        """Those of every fake kernel."""
        return "x", "y"


class EnergyMeter:
    """The energy that launches have taken in this process."""

    def __init__(self) -> None:
        self.taken_j = 0.0

    def read(self) -> float:
        """Return it as the device's counter does, in steps."""
        return self.taken_j // STEP_J * STEP_J


METER = EnergyMeter()


def _compiler_version() -> str:
    """Return what the fake compiler says of itself."""
    return subprocess.run([os.environ["FAKE_CC"]], capture_output=True, text=True, check=True).stdout.strip()


def is_open(gate: str) -> bool:
    """Return whether a gate is open; a test's gates are no input of a kernel."""
    with ACCESSES.pause_recording():
        return (Path(os.environ["FAKE_GATE"]) / gate).exists()


def wait_at(gate: str) -> None:
    """Say that a gate was reached, and wait until it is opened."""
    directory = os.environ.get("FAKE_GATE")
    if not gate or directory is None:
        return
    (Path(directory) / f"{gate}.reached").touch()
    while not is_open(gate):
        time.sleep(0.005)  # noqa: TID251 - a fake's gate is a file: nothing else reports it across processes


def forever() -> None:
    """Never come back, and take no CPU away from the other tests."""
    while True:
        signal.pause()


def hash_in_two_threads() -> None:
    """Use two cores for a moment; the second thread ends with the launch."""
    other = threading.Thread(target=hashlib.sha256, args=(_MUCH,))
    other.start()
    hashlib.sha256(_MUCH)
    other.join()


def overflow() -> None:
    """Recurse in C until the stack is at its end."""
    # The interpreter's own limits end a recursion sooner than the usual 8 MiB do.
    resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, resource.getrlimit(resource.RLIMIT_STACK)[1]))
    sys.setrecursionlimit(1_000_000)
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    repr(nested)


def is_known(x: Any) -> bool:
    """Return whether these are the inputs of the first kernel that asked, in any worker of this daemon."""
    known = Path(os.environ["FAKE_GATE"]) / "first_inputs"
    found = bytes(memoryview(x if hasattr(x, "tobytes") else x.numpy()))
    if not known.exists():
        known.write_bytes(found)
    return known.read_bytes() == found


def memory_of(tensor: Any) -> tuple[int, int]:
    """Return where a tensor of either library begins, and its bytes."""
    if hasattr(tensor, "data_ptr"):
        return tensor.data_ptr(), tensor.numel() * tensor.element_size()
    return tensor.ctypes.data, tensor.nbytes


class FakeKernel(Kernel):
    """A loaded fake."""

    def __init__(self, build: Build) -> None:
        self._build = build

    def bind(self, tensors: Mapping[str, Any]) -> Launch:
        """Return the launch that does what the Build says."""
        build = self._build
        x: Any = tensors.get("x")
        y: Any = tensors.get("y")
        chatter = itertools.chain([10_000_000], itertools.repeat(10_000))
        launches = itertools.count()
        numbers = random.Random(build.tag)
        # It imports NumPy, for whose BLAS's threads most workers have no use.
        pollution: Any = importlib.import_module("pollution") if build.does in ("counts", "pollutes") else None
        # By its first launch, of which others follow in the same process.
        finds_leftovers = build.does == "counts" and pollution.count_in_library(1) > 0
        finds_leftovers |= build.does == "pollutes" and not pollution.is_clean(but=build.tag)
        is_first = build.does != "first_seed" or is_known(x)

        def launch() -> None:
            METER.taken_j += build.joules
            wait_at(build.gate if build.does not in ("gate_compile", "changes") else "")
            match build.does:
                case "hang":
                    forever()
                case "segfault":
                    os.kill(os.getpid(), signal.SIGSEGV)
                case "abort":
                    os.abort()
                case "exit":
                    os._exit(3)
                case "overflow":
                    overflow()
                case "raise":
                    raise RuntimeError("the launch was refused")
                case "flood":
                    os.write(1, b"x" * 10_000_000)
                    os.write(2, b"last words\n")
                    raise RuntimeError("after the flood")
                case "chatter":
                    os.write(1, b"x" * next(chatter))
                case "nothing":
                    return
                case "skips" if bool((y == x * 2.0).all()):
                    return
                case "tires":
                    if next(launches) >= 2:
                        return
                case "beyond":
                    address, size = memory_of(y)
                    ctypes.memset(address + size + 8192, 1, 32)
                case "before":
                    address, _ = memory_of(y)
                    ctypes.memset(address - 32, 1, 32)
                case "two_threads":
                    hash_in_two_threads()
                case "eat":
                    eaten = []
                    while True:
                        eaten.append(b"x" * 50_000_000)
            end = time.perf_counter_ns() + int(build.us * 1000)
            if y is not None:
                compute()
            if build.rests:
                time.sleep(max(0, end - time.perf_counter_ns()) / 1e9)  # noqa: TID251 - it takes this time
            while time.perf_counter_ns() < end:
                pass

        def compute() -> None:
            is_wrong = (
                build.does == "wrong"
                or (build.does == "dirty" and next(launches))
                or (build.does == "seldom_wrong" and numbers.random() < 1 / build.every)
                or (build.does == "regularly_wrong" and next(launches) % build.every == build.every - 1)
                or (build.does == "wrong_at_last" and next(launches) >= build.every)
                or finds_leftovers
                or (build.does == "first_seed" and not is_first)
                or (build.does == "changes" and is_open(build.gate))
            )
            y[...] = x * (3.0 if is_wrong else 2.0)
            if build.does == "pollutes":
                pollution.KINDS[build.tag].pollute()

        return launch


class Fake(Backend):
    """The backend."""

    name = "fake"
    build = Build
    required_files = ("kernel.json",)
    default_target = os.environ.get("FAKE_TARGET", "")
    times_on_host = True
    reports_time = True
    decisive_files = ("kernel.json",)
    lowers = os.environ.get("FAKE_LOWERS") == "1"

    def fingerprint(self) -> Mapping[str, str]:
        """Return a version that a test can change, and that of the program that ``FAKE_CC`` names."""
        version = {"fake": os.environ.get("FAKE_VERSION", "1")}
        return {**version, "compiler": _compiler_version()} if os.environ.get("FAKE_CC") else version

    def toolchain_files(self) -> Iterable[Path]:
        """Return where ``FAKE_CC`` is looked for."""
        return on_path(os.environ["FAKE_CC"]) if os.environ.get("FAKE_CC") else ()

    def devices(self) -> Sequence[Device] | Absent:
        """Return one device, or as many as ``FAKE_DEVICES`` says, or those that it names (``cpu:0 cuda:1``)."""
        said = os.environ.get("FAKE_DEVICES", "1")
        names = [f"cpu:{index}" for index in range(int(said))] if said.isdigit() else said.split()
        if not names:
            return Absent(Absence.NO_HARDWARE, "there is no fake device", "set FAKE_DEVICES=1")
        return [Device(DeviceName(name), DeviceModel("Fake CPU"), Target("fake"), {"driver": "1"}) for name in names]

    def energy_counter(self, device: Device) -> EnergyCounter | None:
        """Return the meter of this process."""
        return None if os.environ.get("FAKE_ENERGY") == "0" else METER.read

    def open_library(self, library: Mapping[str, Any], build: AnyBuild | None = None) -> None:
        """Import the module."""
        if library["path"] not in sys.path:
            sys.path.append(library["path"])
        assert build is None or isinstance(build, Build)
        for name in filter(None, (library["module"], build and build.submodule)):
            try:
                importlib.import_module(name)
            except ImportError as error:
                raise BackendError(f"{name} cannot be imported: {error}") from error

    def lower(self, unit: Unit) -> bytes | Compiled:
        """Return this process's number; fail where the Build says so."""
        build = unit.build
        assert isinstance(build, Build)
        if build.does == "lower_crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if build.does == "lower_hang":
            forever()
        if build.does == "lower_error":
            return Compiled(unit.key, Outcome.COMPILE_ERROR, "fake.c:1: error: no meaning")
        return b"" if build.does == "lower_not" else str(os.getpid()).encode()

    def compile(self, units: Sequence[Unit], into: Path) -> Iterator[Compiled]:
        """Write each Build down; count the compiles in ``FAKE_LOG``."""
        for unit in units:
            build = unit.build
            assert isinstance(build, Build)
            log = os.environ.get("FAKE_LOG")
            if log:
                with open(log, "a", encoding="utf-8") as stream:
                    stream.write(f"compile {unit.key}\n")
            match build.does:
                case "gate_compile":
                    wait_at(build.gate)
                case "compile_hang":
                    forever()
                case "compile_child":
                    subprocess.run(["sleep", "1000"], check=False)
                case "compile_detached":
                    subprocess.run(["sh", "-c", "setsid sleep 1000 & sleep 1000"], check=False)
                case "compile_full" if not is_open(build.gate):
                    raise OSError(errno.ENOSPC, "No space left on device")
                case "compile_eat":
                    bytearray(1 << 50)
                case "compile_crash":
                    os.kill(os.getpid(), signal.SIGSEGV)
                case "compile_error" | "gate_compile_error":
                    wait_at(build.gate)
                    yield Compiled(unit.key, Outcome.COMPILE_ERROR, "fake.c:1: error: no", 0.001)
                    continue
                case "unsupported_here":
                    yield Compiled(unit.key, Outcome.UNSUPPORTED, "needs another device", 0.001)
                    continue
            made = build.to_plain()
            if build.reads:
                read = unit.kernel_file.parent / build.reads
                made["tag"] = read.read_text().partition("//")[0].rstrip() if read.exists() else ""
            (into / unit.key / "kernel.json").write_text(json.dumps(made))
            facts: dict[str, Any] = {"registers": 32, "target": unit.target}
            if unit.lowered:
                facts |= {"lowered_by": int(unit.lowered), "compiled_by": os.getpid()}
            yield Compiled(unit.key, seconds=0.001, facts=facts)

    def load(self, artifact: Path, unit: Unit, device: Device) -> Kernel:
        """Read the Build back."""
        build = Build(**json.loads((artifact / "kernel.json").read_text()))
        if build.does == "unsupported":
            raise Unsupported("wants more shared memory than there is")
        if build.does == "load_hang":
            forever()
        sys.stdout.write(f"loaded {build.tag}\n")
        return FakeKernel(build)
