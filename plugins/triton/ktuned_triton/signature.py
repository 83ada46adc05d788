"""Makes the arguments of a Build's Triton function: tensors without memory, numbers and constants."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from ktuned.backends import unknown_tensor
from ktuned_triton.build import DTYPE, FUNCTION, MEMBER, Argument, Build
from ktuned_triton.descriptors import Descriptor, is_descriptor_type, make_fake_descriptor
from ktuned_triton.launch_plan import Parameter
from ktuned_triton.library import find_function

ALIGNMENT_BYTES = 16
"""Alignment that kernels are compiled for; torch's own allocations have it."""


class ArgumentMismatch(Exception):
    """A Build's arguments do not match its function's parameters; the message says where."""


class FakeTensor:
    """A tensor without memory: it has what Triton reads to specialise a kernel, a dtype and an address."""

    def __init__(self, name: str, dtype: str, *, is_aligned: bool = True) -> None:
        self.name = name
        self.dtype = dtype
        self.is_aligned = is_aligned

    def data_ptr(self) -> int:
        """Return an address; the signature depends on whether it is a multiple of :data:`ALIGNMENT_BYTES`."""
        return 0 if self.is_aligned else 1

    def ptr_range(self) -> int:
        """Return a size within 32 bits; the signature depends on whether offsets fit 32 bits."""
        return 0


def make_call_arguments(function: Any, build: Build, kernel_file: Path) -> dict[str, Any]:
    """Return the arguments of a ``@triton.jit`` function by parameter, defaults included.

    Raises:
        ArgumentMismatch: a parameter has no argument, an argument no parameter, or a tensor cannot be described.
    """
    parameters = {parameter.name: parameter for parameter in function.params}
    for name in build.constants:
        if name not in parameters:
            raise ArgumentMismatch(f"{function.__name__} has no parameter {name!r}; it has {_join_names(parameters)}")
        if not parameters[name].is_constexpr:
            raise ArgumentMismatch(
                f"{name} of {function.__name__} is a constant, but not annotated tl.constexpr: give it in args"
            )
    find = partial(find_function, build=build, kernel_file=kernel_file)
    constants = {name: _unpack_constant(name, value, find) for name, value in build.constants.items()}
    return match_arguments(function, constants, build)


def match_arguments(function: Any, constants: Mapping[str, Any], build: Build) -> dict[str, Any]:
    """Return the arguments of a ``@triton.jit`` function by parameter; ``constants`` replace those of the Build.

    Raises:
        ArgumentMismatch: a parameter has no argument, an argument no parameter, or a tensor cannot be described.
    """
    return dict(_match_arguments(function, constants, build))


def find_launch_parameters(signature: Mapping[str, Any], arguments: Mapping[str, Any]) -> tuple[Parameter, ...]:
    """Return the parameters of the machine code: the arguments that Triton has not compiled in.

    Args:
        signature: Triton's signature: a type for each parameter, a tuple of types for a tuple.
        arguments: the arguments by parameter.
    """
    return tuple(
        parameter for name, kind in signature.items() for parameter in _flatten_parameter(name, kind, arguments[name])
    )


def _flatten_parameter(name: str, kind: Any, value: Any) -> Iterator[Parameter]:
    if isinstance(kind, tuple | list):
        for inner, item in zip(kind, value, strict=True):
            yield from _flatten_parameter(name, inner, item)
    elif is_descriptor_type(kind):
        # The parameters that replace a descriptor are known only after the compile.
        yield Parameter(kind, Descriptor.read(value, value.base.name))
    elif kind != "constexpr":
        is_tensor = isinstance(value, FakeTensor)
        yield Parameter(kind, value.name if is_tensor else value, is_aligned=not is_tensor or value.is_aligned)


def _match_arguments(function: Any, constants: Mapping[str, Any], build: Build) -> Iterator[tuple[str, Any]]:
    rest = list(build.args)
    for parameter in function.params:
        name = parameter.name
        has_default = parameter.default is not inspect.Parameter.empty
        if name in constants:
            yield name, constants[name]
        elif parameter.is_constexpr:
            if not has_default:
                raise ArgumentMismatch(
                    f"{name} of {function.__name__} is a tl.constexpr: give it in constants, not in args"
                )
            yield name, parameter.default
        elif rest:
            yield name, _make_argument(rest.pop(0), build)
        elif has_default:
            yield name, parameter.default
        else:
            raise ArgumentMismatch(f"{function.__name__} takes {name!r}, which is neither in args nor in constants")
    if rest:
        raise ArgumentMismatch(
            f"{function.__name__} takes {_join_names(parameter.name for parameter in function.params)}; "
            f"args has {len(rest)} more: {_join_names(map(repr, rest))}"
        )


def _make_argument(value: Argument, build: Build) -> Any:
    dtypes = build.dtypes
    if isinstance(value, tuple):
        return tuple(_make_argument(item, build) for item in value)
    if isinstance(value, Descriptor):
        return make_fake_descriptor(value, _make_argument(value.descriptor, build))
    if not isinstance(value, str):
        return value
    if value not in dtypes:
        raise ArgumentMismatch(unknown_tensor(value, dtypes))
    if dtypes[value].startswith("complex"):
        raise ArgumentMismatch(f"the tensor {value!r} is of {dtypes[value]}, a dtype that Triton does not have")
    return FakeTensor(value, dtypes[value], is_aligned=value not in build.unaligned)


def _unpack_constant(name: str, value: Any, find: Callable[[str], Any]) -> Any:
    """Return the object that a constant stands for: Triton's dtype, a member of an enum, a function, a plain value."""
    if isinstance(value, tuple):
        return tuple(_unpack_constant(name, item, find) for item in value)
    if not isinstance(value, Mapping):
        return value
    if DTYPE in value:
        from triton import language

        return language.dtype(value[DTYPE])
    if MEMBER in value:
        return _find_member(name, value[MEMBER])
    try:
        return find(value[FUNCTION])
    except LookupError as error:
        raise ArgumentMismatch(f"the constant {name}: {error}") from error


def _find_member(name: str, where: str) -> Any:
    """Return the member of an enum."""
    module, _, qualname = where.partition(":")
    try:
        return attrgetter(qualname)(importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise ArgumentMismatch(f"the constant {name}: there is no {where}: {error}") from error


def _join_names(names: Any) -> str:
    return ", ".join(names) or "none"
