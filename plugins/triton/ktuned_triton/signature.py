"""From a Build to the arguments of its Triton function: tensors without memory, numbers and constants."""

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
from ktuned_triton.descriptors import fake_descriptor, is_descriptor_type, plain_descriptor
from ktuned_triton.launch_plan import Parameter
from ktuned_triton.library import find_function

ALIGNMENT_BYTES = 16
"""Alignment of every tensor, which Triton compiles for; torch's own allocations have it."""


class Misfit(Exception):
    """A Build does not fit the function that it names; the message says why."""


class FakeTensor:
    """A tensor as Triton sees it when it specialises a kernel: a dtype, and an address that is aligned."""

    def __init__(self, name: str, dtype: str) -> None:
        self.name = name
        self.dtype = dtype

    def data_ptr(self) -> int:
        """Return an aligned address: a signature depends on the alignment."""
        return 0

    def ptr_range(self) -> int:
        """Return how far it reaches, on which a signature depends: within 32 bits."""
        return 0


def call_arguments(function: Any, build: Build, kernel_file: Path) -> dict[str, Any]:
    """Return what to call a ``@triton.jit`` function with, by parameter, defaults included.

    Raises:
        Misfit: a parameter has no argument, an argument no parameter, or a tensor cannot be described.
    """
    parameters = {parameter.name: parameter for parameter in function.params}
    for name in build.constants:
        if name not in parameters:
            raise Misfit(f"{_name(function)} has no parameter {name!r}; it has {_listed(parameters)}")
        if not parameters[name].is_constexpr:
            raise Misfit(f"{name} of {_name(function)} is a constant, but not annotated tl.constexpr: give it in args")
    find = partial(find_function, build=build, kernel_file=kernel_file)
    constants = {name: _constant(name, value, find) for name, value in build.constants.items()}
    return dict(_arguments(function, constants, build))


def launch_parameters(signature: Mapping[str, Any], arguments: Mapping[str, Any]) -> tuple[Parameter, ...]:
    """Return the parameters of the machine code: those arguments that Triton has not compiled in.

    ``signature`` is Triton's own: a type for each parameter of the function, a tuple of them for a tuple.
    """
    return tuple(parameter for name, kind in signature.items() for parameter in _flattened(name, kind, arguments[name]))


def _flattened(name: str, kind: Any, value: Any) -> Iterator[Parameter]:
    if isinstance(kind, tuple | list):
        for inner, item in zip(kind, value, strict=True):
            yield from _flattened(name, inner, item)
    elif is_descriptor_type(kind):
        # What stands in its place is known when it is compiled.
        yield Parameter(kind, plain_descriptor(value))
    elif kind != "constexpr":
        yield Parameter(kind, value.name if isinstance(value, FakeTensor) else value)


def _arguments(function: Any, constants: Mapping[str, Any], build: Build) -> Iterator[tuple[str, Any]]:
    rest = list(build.args)
    for parameter in function.params:
        name = parameter.name
        has_default = parameter.default is not inspect.Parameter.empty
        if name in constants:
            yield name, constants[name]
        elif parameter.is_constexpr:
            if not has_default:
                raise Misfit(f"{name} of {_name(function)} is a tl.constexpr: give it in constants, not in args")
            yield name, parameter.default
        elif rest:
            yield name, _argument(rest.pop(0), build.dtypes)
        elif has_default:
            yield name, parameter.default
        else:
            raise Misfit(f"{_name(function)} takes {name!r}, for which args and constants have nothing")
    if rest:
        raise Misfit(
            f"{_name(function)} takes {_listed(parameter.name for parameter in function.params)}; "
            f"args has {len(rest)} more: {_listed(map(repr, rest))}"
        )


def _argument(value: Argument, dtypes: Mapping[str, str]) -> Any:
    if isinstance(value, tuple):
        return tuple(_argument(item, dtypes) for item in value)
    if isinstance(value, Mapping):
        return fake_descriptor(value, _argument(value["descriptor"], dtypes))
    if not isinstance(value, str):
        return value
    if value not in dtypes:
        raise Misfit(unknown_tensor(value, dtypes))
    if dtypes[value].startswith("complex"):
        raise Misfit(f"the tensor {value!r} is of {dtypes[value]}, which Triton does not have")
    return FakeTensor(value, dtypes[value])


def _constant(name: str, value: Any, find: Callable[[str], Any]) -> Any:
    """Return a constant that has travelled as what the function wants."""
    if isinstance(value, tuple):
        return tuple(_constant(name, item, find) for item in value)
    if not isinstance(value, Mapping):
        return value
    if DTYPE in value:
        from triton import language

        return language.dtype(value[DTYPE])
    if MEMBER in value:
        return _member(name, value[MEMBER])
    try:
        return find(value[FUNCTION])
    except LookupError as error:
        raise Misfit(f"the constant {name}: {error}") from error


def _member(name: str, where: str) -> Any:
    """Return the member of an enum."""
    module, _, qualname = where.partition(":")
    try:
        return attrgetter(qualname)(importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise Misfit(f"the constant {name}: there is no {where}: {error}") from error


def _name(function: Callable[..., Any]) -> str:
    return str(function.__name__)


def _listed(names: Any) -> str:
    return ", ".join(names) or "none"
