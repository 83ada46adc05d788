"""Declares kernels from T1 files, the autotuning community's format for tuning problems.

A T1 file (https://github.com/autotuning/schemas) has the parameters with their conditions, the name of the kernel's
source, its launch sizes and its arguments. A kernel file for it is two lines:

    from ktuned_nvrtc import t1
    t1.declare("convolution.T1.json")

Formulas in a T1 file are parsed by ktuned, and never evaluated as Python.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ktuned.model import Expression, Formula, KernelFileError, Problem, UsageError
from ktuned.spec import Kernel, TensorSpec, kernel, space, tensor
from ktuned_nvrtc import scalars
from ktuned_nvrtc.build import Build

MAX_BYTES = 16 * 2**20
"""Limit for the size of a T1 file; those of the public benchmarks have some ten kilobytes."""

_FORMAT = "https://github.com/autotuning/schemas has the format"

_AXES = ("X", "Y", "Z")

_DTYPES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "bool": "bool",
    "char": "int8",
    "short": "int16",
    "int": "int32",
    "long": "int64",
    "uint": "uint32",
    "unsigned int": "uint32",
    **{name: name for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")},
    **{name: name for name in ("float16", "float32", "float64")},
}
"""Dtypes of tensors by T1's type names; vector types (``float4``) go by their element."""

_SCALARS = {
    "float32": scalars.f32,
    "float64": scalars.f64,
    "float16": scalars.f16,
    "int8": scalars.i8,
    "int16": scalars.i16,
    "int32": scalars.i32,
    "int64": scalars.i64,
    "uint8": scalars.u8,
    "uint16": scalars.u16,
    "uint32": scalars.u32,
    "uint64": scalars.u64,
    "bool": bool,
}

_BUDGETS = {"ConfigurationCount": "trials", "TuningDuration": "seconds"}

_PARTS = {"Vector": "a tensor", "Scalar": "a number"}


class _MalformedFile(Exception):
    """A part of the file is missing or has another type; the message names it."""


def declare(path: str | Path) -> Kernel:
    """Declare the kernel of a T1 file.

    Its problem is the file's ``ProblemSize``: ``P0``, ``P1``, …. A T1 file has no reference, so no output is checked.

    Args:
        path: the T1 file, relative to the kernel file that calls this; the ``KernelFile`` in it is relative to it.

    Raises:
        KernelFileError: the file cannot be read, or is not a T1 file for CUDA.
    """
    caller = Path(sys._getframe(1).f_code.co_filename)
    t1_file = (caller.parent / path).resolve()
    try:
        return _Specification(_read_file(t1_file), t1_file).declare_kernel(caller.parent)
    except (_MalformedFile, UsageError) as error:
        hint = error.hint if isinstance(error, UsageError) else _FORMAT
        raise KernelFileError(f"{t1_file}: {error}", path=str(t1_file), hint=hint) from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        message = f"{t1_file}: a value is not of the format's kind: {type(error).__name__}: {error}"
        raise KernelFileError(message, path=str(t1_file), hint=_FORMAT) from error


@dataclass(frozen=True)
class _Argument:
    """One argument of the kernel; with ``symbol`` it is copied into the variable of its name, and not passed."""

    name: str
    dtype: str
    lanes: int
    size: Formula | None
    fill: str
    value: float
    is_output: bool
    symbol: bool

    def make_tensor_spec(self, values: Mapping[str, Any]) -> TensorSpec:
        """Return the declaration of the argument's tensor."""
        assert self.size is not None
        length = _evaluate_whole(self.size, values, f"the size of {self.name}") * self.lanes
        if self.is_output and self.fill != "Random":
            return tensor((length,), self.dtype, output=True)
        if self.fill == "Constant" and self.value in (0, 1):
            return tensor((length,), self.dtype, "ones" if self.value else "zeros", output=self.is_output)
        if self.fill == "Constant":
            whole = self.dtype.removeprefix("u").startswith("int")
            fill, high = ("integer", self.value + 1) if whole else ("uniform", math.nextafter(self.value, math.inf))
            return tensor((length,), self.dtype, fill, low=self.value, high=high, output=self.is_output)
        return tensor((length,), self.dtype, output=self.is_output)


class _Specification:
    """The checked parts of a T1 file."""

    def __init__(self, data: Mapping[str, Any], path: Path) -> None:
        self.path = path
        configurations = _require_field(data, "ConfigurationSpace", dict)
        self.kernel = _require_field(data, "KernelSpecification", dict)
        language = str(self.kernel.get("Language", "CUDA"))
        if language.upper() != "CUDA":
            raise _MalformedFile(f"its kernel is written in {language}; only CUDA can be tuned from a T1 file")
        self.axes, self.default = _read_axes(_require_field(configurations, "TuningParameters", list))
        self.conditions = [
            Expression(str(_require_field(entry, "Expression", str)))
            for entry in configurations.get("Conditions") or ()
        ]
        self.problem_size = [Formula(str(size)) for size in _to_list(self.kernel.get("ProblemSize", [1]))]
        self.arguments = [_read_argument(entry) for entry in _require_field(self.kernel, "Arguments", list)]
        self.local = _read_sizes(_require_field(self.kernel, "LocalSize", dict))
        self.divisors = [[Formula(str(one)) for one in self.kernel.get(f"GridDiv{axis}") or ()] for axis in _AXES]
        self.is_divided = any(f"GridDiv{axis}" in self.kernel for axis in _AXES)
        self.total = _read_sizes(self.kernel.get("GlobalSize") or {})
        self.unit = str(self.kernel.get("GlobalSizeType", "CUDA")).upper()
        self.shared = Formula(str(self.kernel.get("SharedMemory") or 0))
        self.flags = tuple(map(str, self.kernel.get("CompilerOptions") or ()))
        self.budgets = dict(_read_budgets(data))

    def declare_kernel(self, home: Path) -> Kernel:
        """Declare the kernel for a kernel file in the directory ``home``."""
        source = self.path.parent / str(_require_field(self.kernel, "KernelFile", str))
        general = self.kernel.get("BenchmarkName") or self.kernel["KernelName"]
        name = "".join(letter if letter.isalnum() or letter == "_" else "_" for letter in str(general))
        problem = {
            f"P{number}": _evaluate_whole(size, {}, "ProblemSize") for number, size in enumerate(self.problem_size)
        }
        return kernel(
            backend="nvrtc",
            name=name,
            sources=[str(Path(source).relative_to(home) if source.is_relative_to(home) else source)],
            space=space(where=list(self.conditions), **self.axes),
            problems=[problem],
            inputs=self.declare_inputs,
            check=None,
            default=self.default,
            **self.budgets,
        )(self.make_build)

    def declare_inputs(self, p: Problem) -> dict[str, TensorSpec]:
        """Return the tensors of the arguments."""
        values = {**self._make_values(p), **{knob: _unwrap_single(axis) for knob, axis in self.axes.items()}}
        return {
            argument.name: argument.make_tensor_spec(values) for argument in self.arguments if argument.size is not None
        }

    def make_build(self, p: Problem, c: Mapping[str, Any]) -> Build:
        """Return the Build of one config: each parameter is a macro, as Kernel Tuner defines them."""
        values = {**self._make_values(p), **c}
        block = tuple(
            _evaluate_whole(size, values, f"LocalSize.{axis}") for axis, size in zip(_AXES, self.local, strict=True)
        )
        return Build(
            entry=str(self.kernel["KernelName"]),
            args=tuple(self._yield_arguments()),
            grid=self._compute_grid(p, values, block),
            block=block,
            shared_bytes=_evaluate_whole(self.shared, values, "SharedMemory"),
            defines={knob: value if not isinstance(value, bool) else int(value) for knob, value in c.items()},
            flags=self.flags,
            constants={argument.name: argument.name for argument in self.arguments if argument.symbol},
        )

    def _make_values(self, p: Problem) -> dict[str, Any]:
        return {"ProblemSize": tuple(p[f"P{number}"] for number in range(len(self.problem_size)))}

    def _yield_arguments(self) -> Iterable[Any]:
        for argument in self.arguments:
            if argument.size is not None and not argument.symbol:
                yield argument.name
            elif argument.size is None:
                make: Any = _SCALARS[argument.dtype]
                yield make(argument.value if argument.dtype.startswith("float") else int(argument.value))

    def _compute_grid(self, p: Problem, values: Mapping[str, Any], block: Sequence[int]) -> tuple[int, ...]:
        """Return the blocks: the problem's size over the divisors, as in Kernel Tuner, or else the global size."""
        if self.is_divided:
            sizes = [*(int(p[f"P{number}"]) for number in range(len(self.problem_size))), 1, 1][:3]
            return tuple(
                max(1, math.ceil(size / math.prod(_evaluate_whole(one, values, f"GridDiv{axis}") for one in divisors)))
                for axis, size, divisors in zip(_AXES, sizes, self.divisors, strict=True)
            )
        sizes = [
            _evaluate_whole(size, values, f"GlobalSize.{axis}") for axis, size in zip(_AXES, self.total, strict=True)
        ]
        if self.unit == "OPENCL":
            return tuple(max(1, math.ceil(size / threads)) for size, threads in zip(sizes, block, strict=True))
        return tuple(sizes)


def _read_file(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise _MalformedFile(f"it cannot be read: {error.strerror}") from None
    if len(raw) > MAX_BYTES:
        raise _MalformedFile(f"it has more than {MAX_BYTES >> 20} MiB")
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _MalformedFile(f"it is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise _MalformedFile("it is no T1 file: it holds no object")
    return data


def _read_axes(entries: Sequence[Any]) -> tuple[dict[str, list[Any]], dict[str, Any] | None]:
    axes: dict[str, list[Any]] = {}
    default: dict[str, Any] = {}
    for entry in entries:
        name = str(_require_field(entry, "Name", str))
        values = entry.get("Values")
        listed = list(Formula(values)({})) if isinstance(values, str) else values
        if not isinstance(listed, list) or not listed:
            raise _MalformedFile(f"the parameter {name} has no list of Values")
        axes[name] = listed
        if entry.get("Default") in listed:
            default[name] = entry["Default"]
    return axes, default if len(default) == len(axes) else None


def _read_argument(entry: Any) -> _Argument:
    name = str(_require_field(entry, "Name", str))
    kind = str(_require_field(entry, "Type", str))
    element = kind.rstrip("1234568") if kind not in _DTYPES else kind
    if element not in _DTYPES:
        raise _MalformedFile(f"the argument {name} has the unknown type {kind}")
    lanes = int(kind[len(element) :] or 1)
    memory = str(entry.get("MemoryType", "Scalar"))
    if memory not in _PARTS:
        raise _MalformedFile(f"the argument {name} has the MemoryType {memory}; known are {', '.join(_PARTS)}")
    access = str(entry.get("AccessType", "ReadOnly"))
    return _Argument(
        name=name,
        dtype=_DTYPES[element],
        lanes=lanes,
        size=Formula(str(entry.get("Size", 1))) if memory == "Vector" else None,
        fill=str(entry.get("FillType", "Random")),
        value=float(entry.get("FillValue", 0)),
        is_output=bool(entry.get("Output", 0)) or access == "WriteOnly",
        symbol=str(entry.get("MemType", "")) == "Constant",
    )


def _read_sizes(entry: Mapping[str, Any]) -> list[Formula]:
    return [Formula(str(entry.get(axis, 1))) for axis in _AXES]


def _read_budgets(data: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    for entry in _to_list(data.get("Budget") or []):
        if isinstance(entry, dict) and entry.get("Type") in _BUDGETS:
            name = _BUDGETS[entry["Type"]]
            value = float(entry.get("BudgetValue", 0))
            yield name, int(value) if name == "trials" else value


def _evaluate_whole(formula: Formula, values: Mapping[str, Any], what: str) -> int:
    """Return the value of a T1 file's formula, which must be a whole number."""
    try:
        value = formula(values)
    except (ArithmeticError, TypeError, IndexError) as error:
        raise UsageError(f"{what}: {formula.text!r} cannot be computed: {error}") from None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < 0:
        raise UsageError(f"{what}: {formula.text!r} is {value!r}, not a whole number")
    return int(value)


def _unwrap_single(axis: Sequence[Any]) -> Any:
    """Return a parameter's only value, or a tuple of all, of which a formula may take the largest."""
    return axis[0] if len(axis) == 1 else tuple(axis)


def _require_field(data: Any, name: str, kind: type) -> Any:
    """Return a field of a T1 file; raise if it is missing or of another type."""
    value = data.get(name) if isinstance(data, dict) else None
    if not isinstance(value, kind):
        raise _MalformedFile(f"it is no T1 file: {name} is missing, or is of another kind")
    return value


def _to_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
