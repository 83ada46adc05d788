"""A backend whose kernels do what their Build says: take a time, crash, hang, fail. Compiling takes no time.

Workers find it through its ``dist-info`` when this directory is on ``PYTHONPATH``.

- ``FAKE_GATE`` names a directory of gates. A compile or launch whose Build names a ``gate`` creates ``<gate>.reached``
  there, and waits until a file ``<gate>`` exists. So a test knows where a config is, and decides when it goes on.
- ``FAKE_ENERGY=0`` removes the energy counter, which otherwise counts the joules of each launch in steps.
- ``FAKE_TENSORS=numpy`` makes its tensors NumPy's, see :mod:`without_torch`.
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
    """What a config does: compute ``y = 2 x`` in ``us`` µs, with ``joules`` of energy, unless ``does`` says otherwise.

    Attributes:
        us: the time of a launch in µs.
        does: a behaviour of ``compile`` or of the launch, see the ``match`` statements below.
        gate: the gate at which the config waits.
        tag: a name for tests.
        reads: a file beside the kernel file that the compiler reads; its text without comments is in the artifact.
        joules: the energy of a launch.
        rests: whether a launch sleeps, as if the kernel ran on a GPU, instead of using a core.
        every: with ``seldom_wrong`` and ``regularly_wrong``, one of so many launches is wrong; with ``wrong_at_last``,
            every launch from this one on; with ``reads_late``, this launch reads the file ``tag``.
        library: the ``module`` of the function's library, and the ``path`` where it is found.
        submodule: the module of the function itself.
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
        return "x", "y"


class EnergyMeter:
    """The energy of all launches in this process."""

    def __init__(self) -> None:
        self.taken_j = 0.0

    def read(self) -> float:
        """Return the energy in J, in the counter's steps."""
        return self.taken_j // STEP_J * STEP_J


METER = EnergyMeter()


def _compiler_version() -> str:
    """Return the version that the program ``FAKE_CC`` prints."""
    return subprocess.run([os.environ["FAKE_CC"]], capture_output=True, text=True, check=True).stdout.strip()


def is_open(gate: str) -> bool:
    """Return whether a gate is open, without recording a file access of the kernel."""
    with ACCESSES.pause_recording():
        return (Path(os.environ["FAKE_GATE"]) / gate).exists()


def wait_at(gate: str) -> None:
    """Report that a gate was reached, and wait until it is open."""
    directory = os.environ.get("FAKE_GATE")
    if not gate or directory is None:
        return
    (Path(directory) / f"{gate}.reached").touch()
    while not is_open(gate):
        time.sleep(0.005)  # noqa: TID251 - a fake's gate is a file: nothing else reports it across processes


def wait_forever() -> None:
    """Block for ever without using CPU."""
    while True:
        signal.pause()


def kill_daemon() -> None:
    """Send SIGKILL to the daemon, whose end is this process's end, too."""
    with ACCESSES.pause_recording():
        holder = json.loads((Path(os.environ["KTUNED_HOME"]) / "lock").read_text())
    os.kill(holder["pid"], signal.SIGKILL)
    wait_forever()


def hash_in_two_threads() -> None:
    """Keep two cores busy for a moment; the second thread ends before the launch does."""
    other = threading.Thread(target=hashlib.sha256, args=(_MUCH,))
    other.start()
    hashlib.sha256(_MUCH)
    other.join()


def overflow_stack() -> None:
    """Overflow the C stack."""
    # The interpreter's own limits end a recursion sooner than the usual 8 MiB do.
    resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, resource.getrlimit(resource.RLIMIT_STACK)[1]))
    sys.setrecursionlimit(1_000_000)
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    repr(nested)


def is_first_input(x: Any) -> bool:
    """Return whether these inputs equal those of the first kernel that asked, in any worker of this daemon."""
    first = Path(os.environ["FAKE_GATE"]) / "first_inputs"
    content = bytes(memoryview(x if hasattr(x, "tobytes") else x.numpy()))
    if not first.exists():
        first.write_bytes(content)
    return first.read_bytes() == content


def locate_memory(tensor: Any) -> tuple[int, int]:
    """Return the address and the size in bytes of a tensor of NumPy or torch."""
    if hasattr(tensor, "data_ptr"):
        return tensor.data_ptr(), tensor.numel() * tensor.element_size()
    return tensor.ctypes.data, tensor.nbytes


class FakeKernel(Kernel):
    def __init__(self, build: Build) -> None:
        self._build = build

    def bind(self, tensors: Mapping[str, Any]) -> Launch:
        """Return a launch that does what the Build says."""
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
        is_first = build.does != "first_seed" or is_first_input(x)

        def launch() -> None:
            METER.taken_j += build.joules
            wait_at(build.gate if build.does not in ("gate_compile", "changes") else "")
            match build.does:
                case "hang":
                    wait_forever()
                case "segfault":
                    os.kill(os.getpid(), signal.SIGSEGV)
                case "abort":
                    os.abort()
                case "exit":
                    os._exit(3)
                case "overflow":
                    overflow_stack()
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
                case "reads_late" if next(launches) + 1 == build.every:
                    Path(build.tag).read_bytes()
                case "tires":
                    if next(launches) >= 2:
                        return
                case "leaves_threads" if next(launches) >= build.every:
                    threading.Thread(target=threading.Event().wait, daemon=True).start()
                case "grows" if next(launches) == build.every:
                    threading.Thread(target=threading.Event().wait, daemon=True).start()
                case "beyond":
                    address, size = locate_memory(y)
                    ctypes.memset(address + size + 8192, 1, 32)
                case "before":
                    address, _ = locate_memory(y)
                    ctypes.memset(address - 32, 1, 32)
                case "kill_daemon":
                    kill_daemon()
                case "two_threads":
                    hash_in_two_threads()
                case "eat":
                    eaten = []
                    while True:
                        eaten.append(b"x" * 50_000_000)
            end = time.perf_counter_ns() + int(build.us * 1000)
            if y is not None:
                write_output()
            if build.rests:
                time.sleep(max(0, end - time.perf_counter_ns()) / 1e9)  # noqa: TID251 - it takes this time
            while time.perf_counter_ns() < end:
                pass

        def write_output() -> None:
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
    name = "fake"
    build = Build
    required_files = ("kernel.json",)
    default_target = os.environ.get("FAKE_TARGET", "")
    times_on_host = True
    reports_time = True
    decisive_files = ("kernel.json",)
    lowers = os.environ.get("FAKE_LOWERS") == "1"

    def fingerprint(self) -> Mapping[str, str]:
        """Return the version ``FAKE_VERSION``, and the version of the program ``FAKE_CC`` if it is set."""
        version = {"fake": os.environ.get("FAKE_VERSION", "1")}
        return {**version, "compiler": _compiler_version()} if os.environ.get("FAKE_CC") else version

    def toolchain_files(self) -> Iterable[Path]:
        """Return the paths where ``FAKE_CC`` is searched for."""
        return on_path(os.environ["FAKE_CC"]) if os.environ.get("FAKE_CC") else ()

    def devices(self) -> Sequence[Device] | Absent:
        """Return ``FAKE_DEVICES``: a number of CPUs (1 by default), or names such as ``cpu:0 cuda:1``."""
        variable = os.environ.get("FAKE_DEVICES", "1")
        names = [f"cpu:{index}" for index in range(int(variable))] if variable.isdigit() else variable.split()
        if not names:
            return Absent(Absence.NO_HARDWARE, "there is no fake device", "set FAKE_DEVICES=1")
        return [Device(DeviceName(name), DeviceModel("Fake CPU"), Target("fake"), {"driver": "1"}) for name in names]

    def energy_counter(self, device: Device) -> EnergyCounter | None:
        return None if os.environ.get("FAKE_ENERGY") == "0" else METER.read

    def open_library(self, library: Mapping[str, Any], build: AnyBuild | None = None) -> None:
        if library["path"] not in sys.path:
            sys.path.append(library["path"])
        assert build is None or isinstance(build, Build)
        for name in filter(None, (library["module"], build and build.submodule)):
            try:
                importlib.import_module(name)
            except ImportError as error:
                raise BackendError(f"{name} cannot be imported: {error}") from error

    def lower(self, unit: Unit) -> bytes | Compiled:
        """Return this process's id as the lowered form; fail if the Build says so."""
        build = unit.build
        assert isinstance(build, Build)
        if build.does == "lower_crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if build.does == "lower_hang":
            wait_forever()
        if build.does == "lower_error":
            return Compiled(unit.key, Outcome.COMPILE_ERROR, "fake.c:1: error: no meaning")
        return b"" if build.does == "lower_not" else str(os.getpid()).encode()

    def compile(self, units: Sequence[Unit], into: Path) -> Iterator[Compiled]:
        """Write each Build to a file; append a line for each compile to ``FAKE_LOG``."""
        for unit in units:
            build, seconds = unit.build, 0.001
            assert isinstance(build, Build)
            log = os.environ.get("FAKE_LOG")
            if log:
                with open(log, "a", encoding="utf-8") as stream:
                    stream.write(f"compile {unit.key}\n")
            match build.does:
                case "gate_compile":
                    began = time.perf_counter()
                    wait_at(build.gate)
                    seconds = time.perf_counter() - began
                case "compile_hang":
                    wait_forever()
                case "compile_child":
                    subprocess.run(["sleep", "1000"])
                case "compile_detached":
                    subprocess.run(["sh", "-c", "setsid sleep 1000 & sleep 1000"])
                case "compile_full" if not is_open(build.gate):
                    raise OSError(errno.ENOSPC, "No space left on device")
                case "compile_eat":
                    bytearray(1 << 50)
                case "compile_kill_daemon":
                    kill_daemon()
                case "compile_crash":
                    os.kill(os.getpid(), signal.SIGSEGV)
                case "compile_error" | "gate_compile_error":
                    wait_at(build.gate)
                    yield Compiled(unit.key, Outcome.COMPILE_ERROR, "fake.c:1: error: no", 0.001)
                    continue
                case "unsupported_here":
                    yield Compiled(unit.key, Outcome.UNSUPPORTED, "needs another device", 0.001)
                    continue
            content = build.to_plain()
            if build.reads:
                read = unit.kernel_file.parent / build.reads
                content["tag"] = read.read_text().partition("//")[0].rstrip() if read.exists() else ""
            (into / unit.key / "kernel.json").write_text(json.dumps(content))
            facts: dict[str, Any] = {"registers": 32, "target": unit.target}
            if unit.lowered:
                facts |= {"lowered_by": int(unit.lowered), "compiled_by": os.getpid()}
            yield Compiled(unit.key, seconds=seconds, facts=facts)

    def load(self, artifact: Path, unit: Unit, device: Device) -> Kernel:
        build = Build(**json.loads((artifact / "kernel.json").read_text()))
        if build.does == "unsupported":
            raise Unsupported("wants more shared memory than there is")
        if build.does == "load_hang":
            wait_forever()
        sys.stdout.write(f"loaded {build.tag}\n")
        return FakeKernel(build)
