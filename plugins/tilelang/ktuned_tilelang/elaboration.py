"""From a Build to TileLang's program: the function found, called with its arguments, and its compile options merged."""

from __future__ import annotations

import gzip
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ktuned.backends import Layout, unknown_tensor
from ktuned.model import Unsupported
from ktuned.spec import functions
from ktuned_tilelang.build import Build
from ktuned_tilelang.execution import AUTO, CUTEDSL, METAL_ONLY, check_known
from ktuned_tilelang.values import from_plain

_OUT_IDX = "tilelang_out_idx"
_PASS_CONFIGS = "tilelang_pass_configs"
_COMPILE_FLAGS = "tilelang_compile_flags"
"""Attributes by which a program has its own options, as ``tilelang.compile`` reads them."""


class Misfit(Exception):
    """A Build does not fit the function that it names; the message says why."""


@dataclass(frozen=True)
class Program:
    """The program that TileLang compiles.

    Attributes:
        prim_func: the program.
        target: TileLang's target.
        execution_backend: the one that was asked for, or ``auto``.
        out_idx: the parameters that a call returns.
        pass_configs: all of them.
        compile_flags: all of them.
    """

    prim_func: Any
    target: Mapping[str, Any]
    execution_backend: str
    out_idx: tuple[int, ...]
    pass_configs: Mapping[str, Any]
    compile_flags: tuple[str, ...]


def elaborate(build: Build, kernel_file: Path, arch: str) -> Program:
    """Return the program of a Build.

    Raises:
        Misfit: the function cannot be found, or does not make a kernel of the arguments.
        Unsupported: ktuned does not run such a target.
        KernelFileError: the kernel file cannot be imported.
        Exception: whatever the function raises.
    """
    try:
        function = None if build.program else functions.find_function(str(build.function), kernel_file)
        arguments = {name: from_plain(value) for name, value in build.arguments.items()}
    except LookupError as error:
        raise Misfit(str(error)) from error
    jit = _options_of(function)
    execution_backend = _execution_backend(build, jit)
    target = _target(build, jit, arch, execution_backend)
    if build.program:
        prim_func = _read(kernel_file.parent / build.program)
    else:
        prim_func = _prim_func(function, arguments, build, target)
    attributes = dict(prim_func.attrs or {})
    return Program(
        prim_func,
        target,
        execution_backend,
        _out_idx(build, jit, attributes, len(prim_func.params)),
        {
            **_plain_keys(attributes.get(_PASS_CONFIGS)),
            **_plain_keys(jit.get("pass_configs")),
            **{name: from_plain(value) for name, value in build.pass_configs.items()},
        },
        (
            *map(str, attributes.get(_COMPILE_FLAGS, ())),
            *_listed(jit.get("compile_flags")),
            *_listed(build.compile_flags),
        ),
    )


def _options_of(function: Any) -> Mapping[str, Any]:
    """Return the options of ``@tilelang.jit``, or none for another function."""
    if not hasattr(function, "get_tir"):
        return {}
    names = ("out_idx", "target", "execution_backend", "pass_configs", "compile_flags")
    return {name: getattr(function, name) for name in names}


def _execution_backend(build: Build, jit: Mapping[str, Any]) -> str:
    chosen = build.execution_backend
    if chosen == AUTO:
        chosen = jit.get("execution_backend") or _environment().get_default_execution_backend()
    try:
        return check_known(str(chosen))
    except ValueError as error:
        raise Misfit(str(error)) from error


def _target(build: Build, jit: Mapping[str, Any], arch: str, execution_backend: str) -> Mapping[str, Any]:
    """Return TileLang's target, with the architecture to compile for."""
    chosen: Any = build.target if build.target != AUTO else jit.get("target") or AUTO
    if chosen == AUTO:
        chosen = _environment().get_default_target()
    if chosen == AUTO:
        chosen = CUTEDSL if execution_backend == CUTEDSL else "cuda"
    if isinstance(chosen, str):
        config: dict[str, Any] = {"kind": chosen.strip()}
    elif isinstance(chosen, Mapping):
        config = dict(from_plain(chosen))
    else:
        # A target of TVM's.
        config = dict(chosen.export())
    kind = config.get("kind")
    if kind not in ("cuda", CUTEDSL) or execution_backend in METAL_ONLY:
        what = f"the execution backend {execution_backend!r}" if kind in ("cuda", CUTEDSL) else f"the target {kind!r}"
        raise Unsupported(f"{what} is not for CUDA; ktuned runs TileLang's kernels on NVIDIA GPUs")
    if config.setdefault("arch", arch) != arch:
        raise Unsupported(f"the Build's target is {config['arch']}, and {arch} is wanted")
    return config


def _prim_func(function: Any, arguments: Mapping[str, Any], build: Build, target: Mapping[str, Any]) -> Any:
    tvm: Any = importlib.import_module("tilelang").tvm
    determine: Any = importlib.import_module("tilelang.backend.target").determine_target
    with determine(dict(target), return_object=True):
        made = function.get_tir(**_tensors(function, build), **arguments) if hasattr(function, "get_tir") else None
        if made is None:
            made = function(**arguments)
    if not isinstance(made, tvm.tirx.PrimFunc):
        raise Misfit(f"{build.function} returns a {type(made).__name__}, not a T.prim_func")
    return made


def _read(file: Path) -> Any:
    tvm: Any = importlib.import_module("tilelang").tvm
    try:
        text = gzip.decompress(file.read_bytes()).decode() if file.suffix == ".gz" else file.read_text()
        return tvm.ir.load_json(text)
    except OSError as error:
        raise Misfit(f"the program {file.name} cannot be read: {error}") from error


def _tensors(function: Any, build: Build) -> Mapping[str, Any]:
    """Return tensors without memory for an eager function's own parameters; a lazy one has none."""
    names = list(getattr(function.func, "tensor_args", {}))
    if not names:
        return {}
    given = build.args if build.args is not None else tuple(names)
    found = {}
    for name, value in zip(names, given, strict=False):
        if isinstance(value, str) and value in build.layouts:
            found[name] = _empty(build.layouts[value])
        elif isinstance(value, str):
            raise Misfit(unknown_tensor(value, build.layouts))
        else:
            found[name] = value
    return found


def _empty(layout: Layout) -> Any:
    torch: Any = importlib.import_module("torch")
    dtype, shape, strides = layout
    return torch.empty_strided(tuple(shape), tuple(strides), dtype=getattr(torch, dtype), device="meta")


def _out_idx(build: Build, jit: Mapping[str, Any], attributes: Mapping[str, Any], count: int) -> tuple[int, ...]:
    own = attributes.get(_OUT_IDX)
    chosen = _normalised(build.out_idx if build.out_idx is not None else jit.get("out_idx"), count)
    if own is None:
        return chosen
    returned = _normalised(tuple(own), count)
    if chosen not in ((), returned):
        raise Misfit(f"the program returns T.empty tensors, its parameters {returned}, and out_idx is {chosen}")
    return returned


def _normalised(out_idx: Any, count: int) -> tuple[int, ...]:
    """Return indices from 0 on.

    Raises:
        Misfit: one is not of a parameter.
    """
    if out_idx is None:
        return ()
    indices = (out_idx,) if isinstance(out_idx, int) else tuple(int(index) for index in out_idx)
    for index in indices:
        if not -count <= index < count:
            raise Misfit(f"out_idx is {index}, and the kernel has {count} parameters")
    return tuple(index % count for index in indices)


def _plain_keys(options: Mapping[Any, Any] | None) -> dict[str, Any]:
    return {str(getattr(key, "value", key)): value for key, value in dict(options or {}).items()}


def _listed(flags: Any) -> tuple[str, ...]:
    return () if not flags else (flags,) if isinstance(flags, str) else tuple(map(str, flags))


def _environment() -> Any:
    """Return TileLang's settings, as its variables say."""
    return importlib.import_module("tilelang.env").env
