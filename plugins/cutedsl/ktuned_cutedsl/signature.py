"""Matches a Build's arguments with its function's parameters, for ``cute.compile`` and for calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ktuned.backends import Layout, unknown_tensor
from ktuned.model import Scalar
from ktuned_cutedsl.build import Build

ALIGNMENT_BYTES = 16
"""Alignment of a tensor's address: enough for the widest load, and less than any allocator's."""

STREAM = "stream"

_DTYPES = {
    "float64": "Float64",
    "float32": "Float32",
    "float16": "Float16",
    "bfloat16": "BFloat16",
    "float8_e4m3fn": "Float8E4M3FN",
    "float8_e5m2": "Float8E5M2",
    "int8": "Int8",
    "int16": "Int16",
    "int32": "Int32",
    "int64": "Int64",
    "uint8": "Uint8",
    "uint16": "Uint16",
    "uint32": "Uint32",
    "uint64": "Uint64",
    "bool": "Boolean",
}
"""CuTe DSL's names for torch's dtypes."""


class ArgumentMismatch(Exception):
    """A Build's arguments do not match its function's parameters; the message says where."""


def make_compile_arguments(function: Callable[..., Any], build: Build) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return the callable to compile (the function, or an object of the class) and its arguments by parameter.

    Raises:
        ArgumentMismatch: a parameter has no argument, an argument no parameter, or a tensor cannot be described.
    """
    constants = dict(build.constants)
    called: Any = function
    if inspect.isclass(function):
        init_names = [name for name in inspect.signature(function).parameters if name in constants]
        called = function(**{name: constants.pop(name) for name in init_names})
    parameters = inspect.signature(called).parameters
    for name in constants:
        if name not in parameters or name == STREAM:
            raise ArgumentMismatch(
                f"{build.symbol} has no constexpr parameter {name!r}; it has {_join_names(parameters)}"
            )
    if STREAM not in parameters:
        raise ArgumentMismatch(
            f"{build.symbol} has no parameter {STREAM!r}: give it one (annotated cuda.bindings.driver.CUstream), and "
            f"launch its kernels on it, as in .launch(…, {STREAM}={STREAM})"
        )
    return called, dict(_match_arguments(parameters, constants, build))


def _match_arguments(
    parameters: Mapping[str, inspect.Parameter], constants: Mapping[str, Any], build: Build
) -> Iterator[tuple[str, Any]]:
    from cutlass.cute.runtime import make_fake_stream

    rest = list(build.args)
    for name, parameter in parameters.items():
        if name == STREAM:
            # A call takes torch's current stream from a tensor, so none is passed.
            yield name, make_fake_stream(use_tvm_ffi_env_stream=True)
        elif name in constants:
            if not _is_constexpr(parameter):
                raise ArgumentMismatch(f"{name} of {build.symbol} is a constant, but not annotated cutlass.Constexpr")
            yield name, constants[name]
        elif _is_constexpr(parameter):
            if parameter.default is parameter.empty:
                raise ArgumentMismatch(f"{name} of {build.symbol} is a Constexpr: give it in constants, not in args")
        elif rest:
            arg = rest.pop(0)
            yield name, make_compile_tensor(arg, build.layouts) if isinstance(arg, str) else arg
        elif parameter.default is parameter.empty:
            raise ArgumentMismatch(f"{build.symbol} takes {name!r}, which args and constants lack")
    if rest:
        raise ArgumentMismatch(
            f"{build.symbol} takes {_join_names(parameters)}; args has {_join_names(map(repr, rest))} more"
        )
    if not any(isinstance(arg, str) for arg in build.args):
        raise ArgumentMismatch("args names no tensor, and thus no device to run on")


def _is_constexpr(parameter: inspect.Parameter) -> bool:
    # Matches Constexpr, Constexpr[int], and either of them as a string.
    return "Constexpr" in str(parameter.annotation)


def make_compile_tensor(name: str, layouts: Mapping[str, Layout]) -> Any:
    """Return the tensor without memory to compile for: dtype, shape and strides.

    Raises:
        ArgumentMismatch: ``inputs`` declares no such tensor, or CuTe DSL has no such dtype.
    """
    import cutlass
    from cutlass.cute.runtime import make_fake_tensor

    if name not in layouts:
        raise ArgumentMismatch(unknown_tensor(name, layouts))
    dtype, shape, strides = layouts[name]
    if dtype not in _DTYPES:
        raise ArgumentMismatch(f"the tensor {name!r} is of {dtype}, which CuTe DSL does not have")
    return make_fake_tensor(getattr(cutlass, _DTYPES[dtype]), shape, strides, assumed_align=ALIGNMENT_BYTES)


def make_runtime_arguments(args: tuple[Scalar, ...], tensors: Mapping[str, Any]) -> list[Any]:
    """Return the arguments of a compiled function.

    The first tensor stays a torch tensor: apache-tvm-ffi takes the current stream from it. The others are converted
    here, once.

    Raises:
        KeyError: ``args`` names a tensor that ``inputs`` does not declare.
    """
    import tvm_ffi

    bound: list[Any] = []
    has_tensor = False
    for arg in args:
        if not isinstance(arg, str):
            bound.append(arg)
            continue
        if arg not in tensors:
            raise KeyError(unknown_tensor(arg, tensors))
        bound.append(tvm_ffi.from_dlpack(tensors[arg]) if has_tensor else tensors[arg])
        has_tensor = True
    return bound


def _join_names(names: Any) -> str:
    return ", ".join(names) or "none"
