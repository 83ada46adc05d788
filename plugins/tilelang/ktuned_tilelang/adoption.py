"""Kernels of applications, as kernel files: written by the application, read by ktuned's workers."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ktuned.dropin import (
    CALL_KEY,
    device_model,
    digest,
    home,
    own_paths,
    read_record,
    tensors_file,
    write_once,
    write_tensors,
)
from ktuned.dropin import write_record as write_text
from ktuned.model import canonical
from ktuned_tilelang.build import Build
from ktuned_tilelang.call import CAPTURED, Call, Evaluated

_RECORDS = "calls"
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.]+")


@dataclass(frozen=True, slots=True)
class Adopted:
    """An application's function: all that its kernel file says.

    Attributes:
        module: the module that defines it.
        qualname: its name there; it may be that of a closure, because nothing is imported.
        configs: all its configs, as ktuned's.
        restored: the tensors that each run finds as they were; all, where it is not known what the kernel writes.
        rtol: relative tolerance of the comparison with the first config's results.
        atol: absolute tolerance.
        max_mismatched_ratio: share of elements that may differ.
        skips_check: whether nothing is compared.
        timeout_s: deadline of each phase of a config.
        early_stop: how many times the best a config may take, or 0 for ktuned's own.
        timing: ``events``, or ``graph`` where the application asked for CUDA graphs.
    """

    module: str
    qualname: str
    configs: tuple[Mapping[str, Any], ...]
    restored: tuple[str, ...]
    rtol: float
    atol: float
    max_mismatched_ratio: float
    skips_check: bool
    timeout_s: float
    early_stop: float
    timing: str

    @property
    def digest(self) -> str:
        """The digest of all of this, and of the interpreter: another one is another kernel."""
        return digest(json.dumps([asdict(self), sys.executable], sort_keys=True))

    @property
    def project(self) -> str:
        """The name of the directory, and so of the project: the package, and a digest of the environment."""
        package = self.module.partition(".")[0].strip("_")
        return f"tilelang-{package}-{digest(json.dumps([sys.executable, own_paths()]))[:8]}"

    @property
    def kernel(self) -> str:
        """The kernel's full name."""
        return f"{self.project}:{self.name}"

    @property
    def name(self) -> str:
        """The kernel's short name."""
        return f"{_NOT_IN_NAMES.sub('', self.qualname)}-{self.digest[:8]}"

    def write(self, directory: Path) -> Path:
        """Write the kernel file, unless it is there, and return its path."""
        fields = ",\n    ".join(f"{name}={value!r}" for name, value in asdict(self).items())
        text = (
            f'"""{self.module}.{self.qualname} as an application calls it; written by ktuned-tilelang."""\n\n'
            f"from ktuned_tilelang.adoption import Adopted, adopt\n\n"
            f"adopt(__file__, Adopted(\n    {fields},\n))\n"
        )
        return write_once(directory / self.project / f"tune_{self.name.replace('.', '_')}.py", text)


@dataclass(frozen=True, slots=True)
class Request:
    """A tuning key of an adopted function, with one call that has it."""

    adopted: Adopted
    evaluated: Evaluated

    @property
    def kernel(self) -> str:
        """The full name of the kernel that stands for the function."""
        return self.adopted.kernel

    @property
    def function(self) -> str:
        """The function's module and name."""
        return f"{self.adopted.module}.{self.adopted.qualname}"

    @property
    def problem(self) -> Mapping[str, Any]:
        """The tuning key: the programs and the tensors of the call."""
        return {"programs": self.evaluated.digest}

    @property
    def device(self) -> str | None:
        """The model of torch's current GPU, on which TileLang's kernels run."""
        return device_model()

    def write(self) -> tuple[Path, Mapping[str, Any]]:
        """Write the kernel file, the programs and the call; return the file, and the problem that names the call.

        Raises:
            OSError: they cannot be written.
        """
        file = self.adopted.write(home("tilelang"))
        for name, text in self.evaluated.programs.items():
            write_once(file.parent / _RECORDS / name, text)
        call = self.evaluated.call
        if self.evaluated.captured:
            call = replace(call, content=write_tensors(file, self.evaluated.captured))
        return file, {**self.problem, CALL_KEY: write_text(file, call.to_json())}

    def without_content(self) -> Request:
        """Return this without programs and copies of tensors."""
        return replace(self, evaluated=replace(self.evaluated, captured={}))


def adopt(file: str, adopted: Adopted) -> None:
    """Declare the kernel of an application's function; for kernel files."""
    from ktuned.spec import kernel, space

    worker = _Worker(Path(file))
    # Nothing is known of the results but those of the first config.
    judged: dict[str, Any] = {"check": None} if adopted.skips_check else {"reference": "default"}
    phases = ("first_launch", "check", "timing")
    kernel(
        backend="tilelang",
        name=adopted.name,
        space=space([dict(config) for config in adopted.configs], where=worker.admits),
        specialize=("programs",),
        inputs=worker.inputs,
        rtol=adopted.rtol,
        atol=adopted.atol,
        max_mismatched_ratio=adopted.max_mismatched_ratio,
        setup=adopted.restored,
        timing=adopted.timing,
        deadlines=dict.fromkeys(phases, adopted.timeout_s) if adopted.timeout_s > 0 else None,
        early_stop=adopted.early_stop or 3.0,
        strategy="exhaustive",
        preset="fast",
        **judged,
    )(worker.build)


class _Worker:
    """A kernel file's functions: they read the record that a problem names."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._calls: dict[str, Call] = {}

    def admits(self, p: Any, c: Any) -> bool:
        """Return whether a config makes a program; without a call that is not known, and not asked."""
        return CALL_KEY not in p or canonical(dict(c)) in self._call(p).programs

    def inputs(self, p: Any) -> Mapping[str, Any]:
        """Declare the tensors of a call."""
        from ktuned.spec import tensor

        call = self._call(p)
        found = {}
        for name, entry in call.tensors.items():
            is_captured = entry.fill == CAPTURED
            fill = "zeros" if is_captured else entry.fill
            limits = {} if entry.low is None else {"low": entry.low, "high": entry.high}
            spec = tensor(entry.shape, entry.dtype, fill, output=name in call.outputs, **limits)
            found[name] = replace(spec, file=str(tensors_file(self._file, call.content))) if is_captured else spec
        return found

    def build(self, p: Any, c: Any) -> Build:
        """Return a config's Build."""
        return self._call(p).build(canonical(dict(c)), _RECORDS)

    def _call(self, p: Any) -> Call:
        name = p[CALL_KEY]
        if name not in self._calls:
            self._calls[name] = Call.from_json(read_record(self._file, name))
        return self._calls[name]
