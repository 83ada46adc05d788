"""Applications' functions as kernels, and their calls as requests to the daemon: the drop-ins' shared story.

A drop-in adds the fields that its kernel file needs, the file's text, and the record of a call.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from ktuned.dropin.kernel_files import CALL_KEY, digest, home, own_paths, read_record, write_once

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.]+")
_NAME_DIGITS = 8

Call = TypeVar("Call")


@dataclass(frozen=True, kw_only=True)
class Adopted:
    """An application's function: all that its kernel file says.

    Attributes:
        module: the module that defines it.
        qualname: its name there.
        configs: all its configs, as ktuned's.
        timing: ``events``, or ``graph`` where the application asked for CUDA graphs.
    """

    tool: ClassVar[str]
    """The autotuner's name, and that of the directory of its kernel files."""

    module: str
    qualname: str
    configs: tuple[Mapping[str, Any], ...]
    timing: str

    def fields(self) -> dict[str, Any]:
        """Return all that the kernel file says, as plain data."""
        return asdict(self)

    def environment(self) -> list[Any]:
        """Return where the application runs: another environment is another project."""
        return [sys.executable, own_paths()]

    def text(self) -> str:
        """Return the text of the kernel file."""
        raise NotImplementedError

    def file_name(self) -> str:
        """Return the name of the kernel file."""
        return f"tune_{self.name.replace('.', '_')}.py"

    @property
    def digest(self) -> str:
        """The digest of all of this, the same in the application and in a worker that imports the kernel file.

        The interpreter is in the project's name: a worker may be run by another of its names.
        """
        return digest(json.dumps(self.fields(), sort_keys=True))

    @property
    def function(self) -> str:
        """The function's module and name."""
        return f"{self.module}.{self.qualname}"

    @property
    def project(self) -> str:
        """The name of the directory, and so of the project: the package, and a digest of the environment."""
        package = _NOT_IN_NAMES.sub("", self.module.partition(".")[0].strip("_"))
        return f"{self.tool}-{package}-{digest(json.dumps(self.environment()))[:_NAME_DIGITS]}"

    @property
    def name(self) -> str:
        """The kernel's short name."""
        return f"{_NOT_IN_NAMES.sub('', self.qualname)}-{self.digest[:_NAME_DIGITS]}"

    @property
    def kernel(self) -> str:
        """The kernel's full name."""
        return f"{self.project}:{self.name}"

    def arguments(self) -> str:
        """Return the fields as the arguments of a call in the kernel file."""
        return ",\n    ".join(f"{name}={value!r}" for name, value in self.fields().items())

    def write(self, directory: Path) -> Path:
        """Write the kernel file, unless it is there, and return its path."""
        # The daemon's workers import the backend while they wait for this to be imported.
        known = f'# backend="{self.tool}"\n'
        return write_once(directory / self.project / self.file_name(), known + self.text())


class AdoptedRequest:
    """A tuning key of an adopted function, with one call that has it."""

    adopted: Adopted
    problem: Mapping[str, Any]

    @property
    def kernel(self) -> str:
        """The full name of the kernel that stands for the function."""
        return self.adopted.kernel

    @property
    def function(self) -> str:
        """The function's module and name."""
        return self.adopted.function

    def write_call(self, kernel_file: Path) -> str:
        """Write the call beside its kernel file, and return the name that a problem's ``call`` gives it."""
        raise NotImplementedError

    def write(self) -> tuple[Path, Mapping[str, Any]]:
        """Write the kernel file and the call; return the file, and the problem that names the call.

        Raises:
            OSError: they cannot be written.
        """
        file = self.adopted.write(home(self.adopted.tool))
        return file, {**self.problem, CALL_KEY: self.write_call(file)}


class Calls(Generic[Call]):
    """The calls that problems of a kernel file name, each read once."""

    def __init__(self, file: Path, read: Callable[[str], Call]) -> None:
        self._file = file
        self._read = read
        self._known: dict[str, Call] = {}

    def of(self, problem: Mapping[str, Any]) -> Call:
        """Return the call of a problem."""
        name = problem[CALL_KEY]
        if name not in self._known:
            self._known[name] = self._read(read_record(self._file, name))
        return self._known[name]
