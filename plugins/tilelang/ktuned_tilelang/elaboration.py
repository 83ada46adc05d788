"""From a Build to TileLang's program: finds the function, calls it with its arguments, and merges the compile options.

If an option is given several times, a Build's target, execution backend and pass configs override those of
``@tilelang.jit``, which override a program's own attributes and TileLang's defaults. Compiler flags are added up. If
the program itself says which parameters it returns, other values for them are an error.
"""

from __future__ import annotations

import gzip
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ktuned.backends import Layout, unknown_tensor
from ktuned.declaration import functions
from ktuned.model import Unsupported
from ktuned_tilelang.build import Build
from ktuned_tilelang.execution import AUTO, CUTEDSL, METAL_ONLY, check_execution_backend
from ktuned_tilelang.values import from_plain

_OUT_IDX = "tilelang_out_idx"
_PASS_CONFIGS = "tilelang_pass_configs"
_COMPILE_FLAGS = "tilelang_compile_flags"
"""Attributes with a program's own options, which ``tilelang.compile`` reads."""


class ElaborationError(Exception):
    """No kernel can be made of a Build; the message says why."""


@dataclass(frozen=True)
class _JitOptions:
    """The options of ``@tilelang.jit``; those of another function are unset."""

    out_idx: Any = None
    target: Any = None
    execution_backend: str | None = None
    pass_configs: Mapping[Any, Any] | None = None
    compile_flags: Any = None

    @classmethod
    def read(cls, function: Any) -> _JitOptions:
        """Return a function's options."""
        if not hasattr(function, "get_tir"):
            return cls()
        return cls(**{option.name: getattr(function, option.name) for option in fields(cls)})


@dataclass(frozen=True)
class Program:
    """A program for TileLang to compile, with its options merged.

    Attributes:
        prim_func: the program.
        target: TileLang's target.
        execution_backend: the chosen execution backend, or ``auto``.
        out_idx: the indices of the parameters that a call returns.
        pass_configs: all pass configs.
        compile_flags: all flags of the compiler.
    """

    prim_func: Any
    target: Mapping[str, Any]
    execution_backend: str
    out_idx: tuple[int, ...]
    pass_configs: Mapping[str, Any]
    compile_flags: tuple[str, ...]


def elaborate_build(build: Build, kernel_file: Path, arch: str) -> Program:
    """Return the program of a Build.

    Raises:
        ElaborationError: the function cannot be found, or makes no kernel from the arguments.
        Unsupported: ktuned does not run kernels for this target.
        KernelFileError: the kernel file cannot be imported.
        Exception: whatever the function raises.
    """
    try:
        function = None if build.program else functions.find_function(str(build.function), kernel_file)
        arguments = {name: from_plain(value) for name, value in build.arguments.items()}
    except LookupError as error:
        raise ElaborationError(str(error)) from error
    jit = _JitOptions.read(function)
    execution_backend = _choose_execution_backend(build, jit)
    target = _choose_target(build, jit, arch, execution_backend)
    if build.program:
        prim_func = _read_program(kernel_file.parent / build.program)
    else:
        prim_func = _make_prim_func(function, arguments, build, target)
    attributes = dict(prim_func.attrs or {})
    return Program(
        prim_func,
        target,
        execution_backend,
        _choose_out_idx(build, jit, attributes, len(prim_func.params)),
        {
            **_to_plain_keys(attributes.get(_PASS_CONFIGS)),
            **_to_plain_keys(jit.pass_configs),
            **{name: from_plain(value) for name, value in build.pass_configs.items()},
        },
        (
            *map(str, attributes.get(_COMPILE_FLAGS, ())),
            *_to_tuple(jit.compile_flags),
            *_to_tuple(build.compile_flags),
        ),
    )


def _choose_execution_backend(build: Build, jit: _JitOptions) -> str:
    chosen = build.execution_backend
    if chosen == AUTO:
        chosen = jit.execution_backend or _import_settings().get_default_execution_backend()
    try:
        return check_execution_backend(str(chosen))
    except ValueError as error:
        raise ElaborationError(str(error)) from error


def _choose_target(build: Build, jit: _JitOptions, arch: str, execution_backend: str) -> Mapping[str, Any]:
    """Return TileLang's target, with the architecture to compile for."""
    chosen: Any = build.target if build.target != AUTO else jit.target or AUTO
    if chosen == AUTO:
        chosen = _import_settings().get_default_target()
    if chosen == AUTO:
        chosen = CUTEDSL if execution_backend == CUTEDSL else "cuda"
    if isinstance(chosen, str):
        config: dict[str, Any] = {"kind": chosen.strip()}
    elif isinstance(chosen, Mapping):
        config = dict(from_plain(chosen))
    else:
        # An object of TVM's class Target.
        config = dict(chosen.export())
    kind = config.get("kind")
    if kind not in ("cuda", CUTEDSL) or execution_backend in METAL_ONLY:
        what = f"the execution backend {execution_backend!r}" if kind in ("cuda", CUTEDSL) else f"the target {kind!r}"
        raise Unsupported(f"{what} is not for CUDA; ktuned runs TileLang's kernels on NVIDIA GPUs")
    if config.setdefault("arch", arch) != arch:
        raise Unsupported(f"the Build's target is {config['arch']}, and {arch} is wanted")
    return config


def _make_prim_func(function: Any, arguments: Mapping[str, Any], build: Build, target: Mapping[str, Any]) -> Any:
    tvm: Any = importlib.import_module("tilelang").tvm
    determine: Any = importlib.import_module("tilelang.backend.target").determine_target
    with determine(dict(target), return_object=True):
        prim_func = None
        if hasattr(function, "get_tir"):
            prim_func = function.get_tir(**_make_meta_arguments(function, build), **arguments)
        if prim_func is None:
            prim_func = function(**arguments)
    if not isinstance(prim_func, tvm.tirx.PrimFunc):
        raise ElaborationError(f"{build.function} returns a {type(prim_func).__name__}, not a T.prim_func")
    return prim_func


def _read_program(file: Path) -> Any:
    tvm: Any = importlib.import_module("tilelang").tvm
    try:
        text = gzip.decompress(file.read_bytes()).decode() if file.suffix == ".gz" else file.read_text()
        return tvm.ir.load_json(text)
    except OSError as error:
        raise ElaborationError(f"the program {file.name} cannot be read: {error}") from error


def _make_meta_arguments(function: Any, build: Build) -> Mapping[str, Any]:
    """Return tensors without memory for an eager function's tensor parameters; a lazy function has none."""
    names = list(getattr(function.func, "tensor_args", {}))
    if not names:
        return {}
    given = build.args if build.args is not None else tuple(names)
    arguments = {}
    for name, value in zip(names, given, strict=False):
        if isinstance(value, str) and value in build.layouts:
            arguments[name] = _make_meta_tensor(build.layouts[value])
        elif isinstance(value, str):
            raise ElaborationError(unknown_tensor(value, build.layouts))
        else:
            arguments[name] = value
    return arguments


def _make_meta_tensor(layout: Layout) -> Any:
    torch: Any = importlib.import_module("torch")
    dtype, shape, strides = layout
    return torch.empty_strided(tuple(shape), tuple(strides), dtype=getattr(torch, dtype), device="meta")


def _choose_out_idx(build: Build, jit: _JitOptions, attributes: Mapping[str, Any], count: int) -> tuple[int, ...]:
    own = attributes.get(_OUT_IDX)
    chosen = _normalise_indices(build.out_idx if build.out_idx is not None else jit.out_idx, count)
    if own is None:
        return chosen
    returned = _normalise_indices(tuple(own), count)
    if chosen not in ((), returned):
        raise ElaborationError(
            f"the program returns T.empty tensors, its parameters {returned}, and out_idx is {chosen}"
        )
    return returned


def _normalise_indices(out_idx: Any, count: int) -> tuple[int, ...]:
    """Return indices of parameters as a tuple of numbers from 0.

    Raises:
        ElaborationError: an index is out of range.
    """
    if out_idx is None:
        return ()
    indices = (out_idx,) if isinstance(out_idx, int) else tuple(int(index) for index in out_idx)
    for index in indices:
        if not -count <= index < count:
            raise ElaborationError(f"out_idx is {index}, and the kernel has {count} parameters")
    return tuple(index % count for index in indices)


def _to_plain_keys(options: Mapping[Any, Any] | None) -> dict[str, Any]:
    return {str(getattr(key, "value", key)): value for key, value in dict(options or {}).items()}


def _to_tuple(flags: Any) -> tuple[str, ...]:
    return () if not flags else (flags,) if isinstance(flags, str) else tuple(map(str, flags))


def _import_settings() -> Any:
    """Return TileLang's settings, which it reads from environment variables."""
    return importlib.import_module("tilelang.env").env
