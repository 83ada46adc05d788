"""The contract of a backend plugin.

A plugin is a distribution of its own. It names a subclass of :class:`Backend` under the entry-point group
``ktuned.backends``; the daemon only reads that metadata, and workers import the class. The subclass has everything that
differs between backends: which files an artifact has, how they are made, and how they are loaded.

A config passes through a plugin like this:

1. The kernel function returns a :class:`Build`, the plugin's own recipe as plain values, which is sent to other
   processes.
2. A compile worker calls :meth:`Backend.compile` with a :class:`Unit` (the Build and its sources) and an empty
   directory to fill, the artifact. A fault of the config is a :class:`Compiled` with an outcome, never an exception.
   If the plugin has :meth:`Backend.lower`, a front end first does the part that needs the user's Python.
3. A lane calls :meth:`Backend.load` with the sealed artifact, binds the :class:`Kernel` to tensors, and times its
   launch.

Any other exception is a fault of the plugin or the machine, except for the errors that a method's docstring names.

:func:`ktuned.testing.backends.check_backend` is the conformance suite that every plugin runs.
"""

from __future__ import annotations

import dataclasses
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Self

from ktuned.backends.build_fields import check_fields
from ktuned.backends.variables import COMPILING_VARIABLES, MEASURING_VARIABLES
from ktuned.model import Device, FrozenStruct, Outcome, listed

API_VERSION = 1
"""The major version of this contract; a plugin with a newer one is rejected."""

Layout = tuple[str, tuple[int, ...], tuple[int, ...]]
"""A tensor without its content: the dtype's name, the shape, and the strides in elements."""

Launch = Callable[[], float | None]
"""Runs the kernel once on its bound arguments; on a GPU it may return before the kernel ends.

It may return a number. That is its time in microseconds, which replaces the clock's, if the backend
:attr:`~Backend.reports_time` or the kernel file says ``timing="returned"``; otherwise it means nothing.
"""

EnergyCounter = Callable[[], float]
"""Returns the joules that a device has used since some fixed moment."""


def read_layout(tensor: Any) -> Layout | None:
    """Return the layout of a tensor or an array; a sparse tensor has no strides, and thus no layout."""
    if str(getattr(tensor, "layout", "")).startswith("torch.sparse"):
        return None
    if hasattr(tensor, "stride"):
        return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tuple(tensor.stride())
    return str(tensor.dtype), tuple(tensor.shape), tuple(step // tensor.itemsize for step in tensor.strides)


@dataclass(frozen=True)
class Build:
    """Result of a kernel function: the recipe to compile and call one config, as plain values.

    A plugin's ``Build`` is a frozen dataclass that derives from this. Its fields have values that MessagePack can carry
    (scalars, strings, tuples, maps). A string in ``args`` names a tensor of ``inputs``; other values are scalars.
    """

    backend: ClassVar[str]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own_post_init: Callable[[Any], None] | None = cls.__dict__.get("__post_init__")

        def check_and_finish(self: Build) -> None:
            # Check before the plugin's own code, which may hide a fault: `tuple("xy")` splits a string into arguments.
            check_fields(self)
            if own_post_init is not None:
                own_post_init(self)

        cls.__post_init__ = check_and_finish  # type: ignore[attr-defined]

    def to_plain(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        plain: dict[str, Any] = _to_plain(self)
        return plain

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Self:
        """Make a Build of :meth:`to_plain`'s data; lists become tuples again."""
        return cls(**{key: _freeze_lists(value) for key, value in data.items()})

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the tensors of ``inputs`` that a call takes, in the order of its arguments."""
        named = (arg for arg in getattr(self, "args", ()) if isinstance(arg, str))
        return tuple(dict.fromkeys(named))

    def given(self, layouts: Callable[[], Mapping[str, Layout]]) -> Self:
        """Return this Build with those properties of the problem's tensors for which it is compiled.

        A backend that compiles for shapes or dtypes records them here, and they become part of the artifact's key. Most
        backends record nothing, so that problems can share an artifact.

        Args:
            layouts: returns the layouts of the problem's tensors, by their names in ``inputs``.
        """
        return self

    def without_tensors(self) -> Self:
        """Return this Build for a kernel without ``inputs``: strings in its ``args`` are values and name no tensors."""
        return self


def _to_plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_to_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _to_plain(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {entry.name: _to_plain(getattr(value, entry.name)) for entry in dataclasses.fields(value)}
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    raise TypeError(f"a Build cannot carry a {type(value).__name__}: {value!r}")


def _freeze_lists(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_freeze_lists(item) for item in value)
    return {key: _freeze_lists(item) for key, item in value.items()} if isinstance(value, dict) else value


class Unit(FrozenStruct):
    """One config's compile: its Build and its sources.

    Attributes:
        key: the artifact's key, and the name of the directory to fill.
        build: the config's Build.
        sources: absolute paths of the sources.
        kernel_file: the kernel file, where a Build's Python function is found.
        kernel: the kernel's name.
        target: the architecture to compile for.
        lowered: what :meth:`Backend.lower` made of the Python function; if it is not empty, compile this instead.
    """

    key: str
    build: Build
    sources: tuple[Path, ...]
    kernel_file: Path
    kernel: str
    target: str
    lowered: bytes = b""


class Compiled(FrozenStruct):
    """Result of one unit. A plugin need not report the files that it has read, because they are observed.

    Attributes:
        key: the unit's key.
        outcome: ``None`` on success, else ``compile_error`` or ``unsupported``.
        message: the compiler's message.
        seconds: how long this unit took.
        facts: facts that are stored with the artifact (registers, lowered names, …).
    """

    key: str
    outcome: Outcome | None = None
    message: str = ""
    seconds: float = 0.0
    facts: Mapping[str, Any] = {}


class Absence(StrEnum):
    """Reason for the absence of devices."""

    NO_HARDWARE = "no_hardware"
    NO_DRIVER = "no_driver"
    NO_COMPILER = "no_compiler"
    NO_LIBRARY = "no_library"
    HIDDEN = "hidden"


class Absent(FrozenStruct):
    """Why a backend cannot run here: the reason, one line about it, and what to do."""

    reason: Absence
    message: str
    hint: str = ""


class Kernel(ABC):
    """A loaded artifact, which can be bound to tensors and launched."""

    @abstractmethod
    def bind(self, tensors: Mapping[str, Any]) -> Launch:
        """Return a call without arguments that launches the kernel on ``tensors`` (by their names in ``inputs``).

        The tensors are on the kernel's device. On a GPU, the call launches in torch's current stream, also while that
        stream is captured. Prepare everything here, so that the launch itself costs the host as little as possible.

        Raises:
            KeyError: ``args`` names a tensor that ``inputs`` does not declare.
        """

    def call(self, tensors: Mapping[str, Any]) -> Any:
        """Run the kernel once on ``tensors``, for an application; a Python function's result is returned."""
        return self.bind(tensors)()


class Backend(ABC):
    """Base class of plugins. Instances live only in worker processes and keep no state between calls.

    Attributes:
        name: the backend's name, as kernel files write it.
        group_size: how many units are worth compiling together; the pipeline passes groups of up to this size.
        default_target: the target if there is no device and no ``arch`` was given; empty if there is none.
        api_version: the major version of this contract that the plugin was written for.
        build: the plugin's :class:`Build`. The backends of a family share it; their names are its name with a suffix.
        required_files: the files that every artifact of this backend has; checked when it is sealed and loaded.
        compiling_variables: environment variables that decide what is compiled, as names or as prefixes with ``*``.
            They are part of an artifact's key, as are all variables that a project sets itself.
        measuring_variables: environment variables that decide how a kernel runs. They are part of a measurement's key.
        lowers: whether it has :meth:`lower`, so that compile workers import none of the user's code.
        needs_kernel_file: whether :meth:`load` reads ``unit.kernel_file`` or files beside it.
        times_on_host: whether a launch ends with its work even on a GPU, so that the host's clock can time it.
        reads_strides: whether a call reads the strides of its tensors, so that an application may pass any view.
        reports_time: whether a launch returns its own time whatever the kernel file says.
        decisive_files: the required files that, together with the Build, decide everything that runs: a measurement of
            one artifact then holds for all others with the same bytes. Empty if other code runs as well, such as a
            Python function.
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
    reads_strides: ClassVar[bool] = False
    reports_time: ClassVar[bool] = False
    lowers: ClassVar[bool] = False
    needs_kernel_file: ClassVar[bool] = False

    @classmethod
    def for_sources(cls, sources: Sequence[Path]) -> str:
        """Return the name of the backend for a kernel with these sources: this one, or another of its family."""
        return cls.name

    @abstractmethod
    def fingerprint(self) -> Mapping[str, str]:
        """Return the versions and flags that can change the binary (compiler, libraries, this plugin)."""

    def toolchain_files(self) -> Iterable[Path]:
        """Return the programs and libraries behind :meth:`fingerprint`, and paths at which new ones would come first.

        Their contents become part of the fingerprint, and the backend is probed again when one of them changes. The
        plugin's distribution and its requirements are watched anyway. See :func:`ktuned.backends.on_path`.
        """
        return ()

    @abstractmethod
    def devices(self) -> Sequence[Device] | Absent:
        """Return this backend's present devices; an absence is returned, never raised."""

    def energy_counter(self, device: Device) -> EnergyCounter | None:
        """Return a device's energy counter; ``None`` leaves it to ktuned, which knows NVIDIA's GPUs.

        Raises:
            Unsupported: the device has none; the message continues a sentence about the device.
        """
        return None

    def prepare(self) -> None:  # noqa: B027 - most backends have nothing to do
        """Prepare a process once for compiling or loading, such as by importing a compiler.

        Workers call it while they wait for work.

        Raises:
            BackendError: it failed.
        """

    def open_library(self, library: Mapping[str, Any], build: Build | None = None) -> None:  # noqa: B027 - most have none
        """Import an application's library, and the module that a Build needs from it; called before :meth:`lower`.

        Drop-ins make Builds with a field ``library``: plain data that says from where, instead of the kernel file,
        functions are imported. All Builds with an equal library share one process.

        Raises:
            BackendError: it cannot be imported; no config is to blame.
        """

    def lower(self, unit: Unit) -> bytes | Compiled:
        """Translate a unit's Python function into the data that :meth:`compile` takes instead (``unit.lowered``).

        One process imports the kernel file, or the library, and calls this for all its configs. It should take a small
        part of the compile's time.

        Returns:
            the data; ``b""`` if :meth:`compile` must do everything; a :class:`Compiled` with an outcome to end the
            unit.
        """
        return b""

    @abstractmethod
    def compile(self, units: Sequence[Unit], into: Path) -> Iterator[Compiled]:
        """Compile a group of units, each into the directory ``into / unit.key``, which exists and is empty.

        Yields:
            a :class:`Compiled` for each unit as soon as it is ready. A bad unit must not fail its group: a compile
            error is a result, not an exception.
        """

    @abstractmethod
    def load(self, artifact: Path, unit: Unit, device: Device) -> Kernel:
        """Load a sealed artifact, whose files are already verified, without compiling.

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
    """Compile units together, and yield one result for each; for backends that are faster this way.

    ``compile`` makes the artifacts of all its units, and returns their facts by key. When it raises ``refusal``, the
    two halves are compiled separately, and so on, until each faulty unit has its own error. The time of common work is
    divided among the units; ``spent_s`` is each unit's share of failed attempts.
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


def unknown_tensor(name: str, names: Iterable[str]) -> str:
    """Return the error for an argument of a Build that is not the name of a tensor of ``inputs``."""
    return f"args names the tensor {name!r}, which inputs(p) does not make {listed(names, near=name)}"
