"""The contract of a backend plugin.

A plugin is a distribution of its own. It names a subclass of :class:`Backend` under the entry-point group
``ktuned.backends``; the daemon reads that metadata only, and the class is imported in workers. The subclass
holds everything that differs between backends: the files of an artifact, their making and loading.

:func:`ktuned.testing.backends.check_backend` is the conformance suite that every plugin runs.
"""

from __future__ import annotations

import dataclasses
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Self

from ktuned.backends.build_fields import check_fields
from ktuned.backends.variables import COMPILING_VARIABLES, MEASURING_VARIABLES
from ktuned.model import Device, Outcome, Record, listed, record

API_VERSION = 1
"""The major version of this contract; a plugin that states a newer one is refused."""

Layout = tuple[str, tuple[int, ...], tuple[int, ...]]
"""A tensor without its content: its dtype's name, its shape, its strides in elements."""

_INCLUDE_OPTIONS = ("-I", "-iquote", "-isystem", "-idirafter", "--include-path=")

Launch = Callable[[], float | None]
"""Runs the kernel once on its bound arguments; on a GPU it may return before the kernel ends.

A launch that returns a number has timed itself: its figure, in microseconds, counts instead of the clock's.
"""


EnergyCounter = Callable[[], float]
"""Returns the joules that a device has taken since some moment."""


@dataclass(frozen=True)
class Build:
    """Result of a kernel function: the recipe to compile and call one config, as plain values.

    A plugin's ``Build`` is a frozen dataclass that derives from this. Its fields hold values that MessagePack can
    carry (scalars, strings, tuples, maps); ``args`` names tensors by their key in ``inputs`` and gives scalars.
    """

    backend: ClassVar[str]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own_post_init: Callable[[Any], None] | None = cls.__dict__.get("__post_init__")

        def check_and_finish(self: Build) -> None:
            # Before the plugin's own code: `tuple("xy")` would make two arguments of a forgotten comma.
            check_fields(self)
            if own_post_init is not None:
                own_post_init(self)

        cls.__post_init__ = check_and_finish  # type: ignore[attr-defined]

    def to_plain(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return {entry.name: _plain(getattr(self, entry.name)) for entry in dataclasses.fields(self)}

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild a ``Build`` from :meth:`to_plain`'s data; lists become tuples again."""
        return cls(**{key: _frozen(value) for key, value in data.items()})

    @property
    def tensors(self) -> tuple[str, ...]:
        """The tensors of ``inputs`` that a call takes, in the order of its arguments."""
        named = (arg for arg in getattr(self, "args", ()) if isinstance(arg, str))
        return tuple(dict.fromkeys(named))

    @property
    def include_dirs(self) -> tuple[str, ...]:
        """The include directories in ``flags``, if a Build has them, as written there."""
        flags = [str(flag) for flag in getattr(self, "flags", ())]
        joined = [flag.removeprefix(option) for flag in flags for option in _INCLUDE_OPTIONS if flag.startswith(option)]
        apart = [name for option, name in pairwise(flags) if option in _INCLUDE_OPTIONS]
        return tuple(name for name in (*joined, *apart) if name)

    def given(self, layouts: Callable[[], Mapping[str, Layout]]) -> Self:
        """Return this Build with the properties of its problem's tensors (by their names in ``inputs``).

        For a backend that compiles for the tensors' shapes or dtypes: the recorded properties enter the artifact's
        key. Most backends record none, and share one artifact between problems.
        """
        return self

    def without_tensors(self) -> Self:
        """Return this Build for a kernel that takes no tensors, where its strings stand for themselves."""
        return self


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    raise TypeError(f"a Build cannot carry a {type(value).__name__}: {value!r}")


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_frozen(item) for item in value)
    return {key: _frozen(item) for key, item in value.items()} if isinstance(value, dict) else value


@record
class Unit(Record):
    """Unit of compiling: a config's ``Build`` and its sources.

    ``key`` is the artifact's key and the name of the directory to fill; ``sources`` are absolute paths.
    ``kernel_file`` and ``kernel`` locate the Python function of a Build that holds one; ``lowered`` is what
    :meth:`Backend.lower` made of that, and stands in its place.
    """

    key: str
    build: Build
    sources: tuple[Path, ...]
    kernel_file: Path
    kernel: str
    target: str
    lowered: bytes = b""


@record
class Compiled(Record):
    """Result of one unit.

    ``outcome`` is ``None`` on success, else ``compile_error`` or ``unsupported``; ``message`` is the compiler's;
    ``facts`` are kept with the artifact (registers, lowered names, …). What was
    read for it is observed below the compiler, and no backend's concern.
    """

    key: str
    outcome: Outcome | None = None
    message: str = ""
    seconds: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict)


class Absence(StrEnum):
    """Reason for the absence of devices."""

    NO_HARDWARE = "no_hardware"
    NO_DRIVER = "no_driver"
    NO_COMPILER = "no_compiler"
    NO_LIBRARY = "no_library"
    HIDDEN = "hidden"


@record
class Absent(Record):
    """A backend that cannot run here: the reason, one line about it, and the command that fixes it."""

    reason: Absence
    message: str
    hint: str = ""


class Kernel(ABC):
    """A loaded artifact, which can be bound to tensors and launched."""

    @abstractmethod
    def bind(self, tensors: Mapping[str, Any]) -> Launch:
        """Return a call without arguments that launches the kernel on ``tensors`` (by their names in ``inputs``).

        The tensors live on the kernel's device. All preparation happens here, so that the
        launch itself costs the host as little as possible.

        Raises:
            KeyError: ``args`` names a tensor that ``inputs`` does not declare.
        """

    def call(self, tensors: Mapping[str, Any]) -> Any:
        """Run the loaded kernel once on ``tensors``, for an application; return what a function of Python returns."""
        return self.bind(tensors)()


class Backend(ABC):
    """Base class of plugins. Instances live only in worker processes and hold no state between calls.

    Attributes:
        name: the backend's name, as kernel files write it.
        group_size: the number of units worth compiling together; the pipeline passes groups of up to this size.
        default_target: the target without a device and without ``arch``; empty if there is none.
        api_version: the major version of this contract that the plugin was written for.
        build: the plugin's :class:`Build`; backends of one family share it, and are named by it and a suffix.
        required_files: the files that an artifact of this backend must hold, checked before save and after load.
        compiling_variables: the environment variables that decide what is compiled (names, or beginnings and ``*``);
            they key artifacts. Those that a project sets for itself always count.
        measuring_variables: those that decide how it runs; they key measurements.
        lowers: it has :meth:`lower`, so that compile workers import nothing of the user's.
        needs_kernel_file: :meth:`load` reads ``unit.kernel_file``, or what lies beside it.
        times_on_host: its launches end with their work on a GPU too, so that the host's clock times them.
        decisive_files: those of them that, with the Build, decide all that runs: a measurement of one artifact then
            holds for every other with the same bytes. None if other code runs as well (a Python function);
            :meth:`runs_other_code` says so of single Builds.
    """

    name: ClassVar[str]
    group_size: ClassVar[int] = 1
    default_target: ClassVar[str] = ""
    api_version: ClassVar[int] = API_VERSION
    build: ClassVar[type[Build]]
    compiling_variables: ClassVar[tuple[str, ...]] = COMPILING_VARIABLES
    measuring_variables: ClassVar[tuple[str, ...]] = MEASURING_VARIABLES
    required_files: ClassVar[tuple[str, ...]]
    decisive_files: ClassVar[tuple[str, ...]] = ()
    times_on_host: ClassVar[bool] = False
    lowers: ClassVar[bool] = False
    needs_kernel_file: ClassVar[bool] = False

    @classmethod
    def for_sources(cls, sources: Sequence[Path]) -> str:
        """Return the name of the backend that builds a kernel of these sources: this one's, or one of its family."""
        return cls.name

    @abstractmethod
    def fingerprint(self) -> Mapping[str, str]:
        """Return the versions and flags that can change the binary (compiler, libraries, this plugin)."""

    def toolchain_files(self) -> Iterable[Path]:
        """Return the programs and libraries that :meth:`fingerprint` stands for, and the places searched in vain.

        Their contents become part of the fingerprint, and a change of any has the backend probed again. The plugin's
        distribution and those that it requires are watched without being named. See :func:`ktuned.backends.on_path`.
        """
        return ()

    @abstractmethod
    def devices(self) -> Sequence[Device] | Absent:
        """Return this backend's devices at this time; absence is data, never an exception."""

    def energy_counter(self, device: Device) -> EnergyCounter | None:
        """Return what reads the energy of a device; ``None`` leaves it to ktuned, which knows NVIDIA's GPUs.

        Raises:
            Unsupported: it has none; the message says why, as the rest of a sentence about the device.
        """
        return None

    def prepare(self) -> None:  # noqa: B027 - most backends have nothing to do
        """Do what each process must do once before it compiles or loads, such as importing a compiler.

        Workers call it while they wait for work; in most others it was imported by the kernel file.

        Raises:
            BackendError: it cannot be done.
        """

    def open_library(self, library: Mapping[str, Any], build: Build | None = None) -> None:  # noqa: B027 - most have none
        """Import what the Builds that name a ``library`` have their functions from, and what one of them needs besides.

        Such a Build has a field ``library``: plain data, by which Builds of all kernels share one process, and which
        stands in place of the kernel file. It is called before :meth:`lower`.

        Raises:
            BackendError: it cannot be imported; no config is to blame.
        """

    def lower(self, unit: Unit) -> bytes | Compiled:
        """Translate a unit's Python function into what :meth:`compile` takes in its place (``unit.lowered``).

        One process calls this for all configs of a kernel file, which it imports, or of a library; it should take a
        small part of the compile. Nothing (``b""``) leaves all to :meth:`compile`; a :class:`Compiled` with an outcome
        ends the unit.
        """
        return b""

    def runs_other_code(self, build: Build) -> bool:
        """Return whether launches of a Build run more than its ``decisive_files``, such as hooks in Python."""
        return False

    @abstractmethod
    def compile(self, units: Sequence[Unit], into: Path) -> Iterator[Compiled]:
        """Compile a group of units, each into the directory ``into / unit.key`` (made by the caller, empty).

        Yields one :class:`Compiled` per unit when it is ready. One bad unit never fails its group: a compile error
        is a result, not an exception.
        """

    @abstractmethod
    def load(self, artifact: Path, unit: Unit, device: Device) -> Kernel:
        """Load a sealed artifact (its files are verified already) without compiling anything.

        Raises:
            Unsupported: this device cannot run it.
            BackendError: the device cannot be reached from this process.
        """


def compile_together(
    units: Sequence[Unit],
    compile: Callable[[Sequence[Unit]], Mapping[str, Mapping[str, Any]]],  # noqa: A002 - what it does
    refusal: type[Exception],
    spent_s: float = 0.0,
) -> Iterator[Compiled]:
    """Compile units together, and yield one result for each; for backends that gain from it.

    ``compile`` makes the artifacts of all its units, and returns their facts by key. When it raises ``refusal``, the
    halves are compiled separately, until each faulty unit has its own error. Units share the time of common work;
    ``spent_s`` is each one's share of failed attempts.
    """
    started = time.perf_counter()
    try:
        facts = compile(units)
    except refusal as error:
        spent_s += (time.perf_counter() - started) / len(units)
        if len(units) == 1:
            yield Compiled(units[0].key, Outcome.COMPILE_ERROR, str(error), spent_s)
            return
        middle = len(units) // 2
        yield from compile_together(units[:middle], compile, refusal, spent_s)
        yield from compile_together(units[middle:], compile, refusal, spent_s)
    else:
        each_s = spent_s + (time.perf_counter() - started) / len(units)
        for unit in units:
            yield Compiled(unit.key, seconds=each_s, facts=facts[unit.key])


def unknown_tensor(name: str, made: Iterable[str]) -> str:
    """Return the error for an argument of a Build that names none of the tensors that ``inputs`` makes."""
    return f"args names the tensor {name!r}, which inputs(p) does not make {listed(made, near=name)}"
