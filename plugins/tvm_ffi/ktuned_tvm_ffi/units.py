"""Compiles units; units that differ only in their functions' names are one library.

Such functions need not be exported by the sources: a generated source includes the first one and exports them. Headers
are then parsed once for the group.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from ktuned.backends import Compiled, Resources, Unit, compile_together, ptxas, write_sources
from ktuned.dependencies import is_users_header
from ktuned_tvm_ffi.build import Build
from ktuned_tvm_ffi.compiler import CompileError, Compiler
from ktuned_tvm_ffi.prelude import find_or_make_prelude

KERNEL_FILE = "kernel.so"
SOURCES_DIRECTORY = "sources"

_EXPORTING_HEADER = "tvm/ffi/function.h"


def compile_units(
    compiler: Compiler, units: Sequence[Unit], into: Path, suffixes: Collection[str]
) -> Iterator[Compiled]:
    """Compile units whose sources end in ``suffixes``, and yield one result for each.

    Units whose ``function`` is an expression, with the same sources, macros, flags and target, are one library with
    several functions. If it does not compile, it is halved until the faulty units are alone.

    Raises:
        BackendError: the disk is full.
    """
    groups: dict[tuple[Any, ...], list[Unit]] = {}
    for unit in units:
        build = cast(Build, unit.build)
        alone = build.function if build.is_exported else ""
        groups.setdefault((unit.sources, build.macros, build.flags, unit.target, alone), []).append(unit)
    for group in groups.values():
        yield from compile_together(
            group, partial(_compile_library, compiler, into=into, suffixes=suffixes), CompileError
        )


def _compile_library(
    compiler: Compiler, units: Sequence[Unit], *, into: Path, suffixes: Collection[str]
) -> Mapping[str, Mapping[str, Any]]:
    """Compile units as one library, write their artifacts and return their facts by key.

    Raises:
        CompileError: the compiler or the linker failed.
    """
    sources, build = units[0].sources, cast(Build, units[0].build)
    if not sources:
        raise CompileError(f"the kernel {units[0].kernel} names no sources")
    for source in sources:
        if source.suffix not in suffixes:
            raise CompileError(f"{source.name}: not a C++ source; its name must end in {', '.join(sorted(suffixes))}")
    base = sources[0].parent
    flags = (*compiler.standard_flags(units[0].target), *build.flags)
    # With -save-temps the compiler compiles preprocessed text, which cannot use a precompiled header.
    keeps_text = any(flag.lstrip("-").startswith("save-temps") for flag in flags)
    prelude = None if keeps_text else find_or_make_prelude(compiler, flags)
    commands: list[str] = []
    read: set[Path] = set()
    outputs: list[str] = []
    with tempfile.TemporaryDirectory(prefix="ktuned-cc-") as directory:
        scratch = Path(directory)
        to_compile = list(sources)
        if not build.is_exported:
            to_compile[0] = _write_exporting_source(sources[0], units, scratch)
        objects = []
        for index, source in enumerate(to_compile):
            built = compiler.compile_source(source, scratch / f"{index}.o", flags=flags, macros=build.macros,
                                     prelude=prelude, base=base)  # fmt: skip
            objects.append(built.path)
            read.update(built.sources)
            commands.append(built.command)
            outputs.append(built.output)
        library = scratch / KERNEL_FILE
        commands.append(compiler.link_objects(objects, library, flags=flags, base=base))
        if build.is_exported and f"__tvm_ffi_{build.function}\0".encode() not in library.read_bytes():
            raise CompileError(
                f"{sources[0].name}: error: no source exports {build.function!r}; "
                f"add TVM_FFI_DLL_EXPORT_TYPED_FUNC({build.function}, …)"
            )
        texts = {path: path.read_bytes() for path in {*sources, *filter(is_users_header, read)}}
        for unit in units:
            shutil.copyfile(library, into / unit.key / KERNEL_FILE)
            write_sources(texts, into / unit.key / SOURCES_DIRECTORY)
    used = ptxas.parse("\n".join(outputs))
    shared = {"command": commands, **_summarise_resources(used)}
    return {unit.key: {"function": cast(Build, unit.build).symbol, **shared} for unit in units}


def _write_exporting_source(source: Path, units: Sequence[Unit], scratch: Path) -> Path:
    """Write a source that includes the first one and exports the units' functions; return it."""
    functions = {build.symbol: build.function for build in (cast(Build, unit.build) for unit in units)}
    lines = [f'#include "{source.name}"', f"#include <{_EXPORTING_HEADER}>"]
    # Sorted, so that the same units give the same bytes in any order.
    lines += [f"TVM_FFI_DLL_EXPORT_TYPED_FUNC({name}, ({functions[name]}));" for name in sorted(functions)]
    exporting = scratch / f"exports{source.suffix}"
    exporting.write_text("\n".join(lines) + "\n")
    return exporting


def _summarise_resources(used: Mapping[str, Resources]) -> dict[str, Any]:
    """Return the resources of a library's kernels by symbol; those of a sole kernel also as the config's own."""
    if not used:
        return {}
    kernels = {symbol: resources.to_facts() for symbol, resources in used.items()}
    return {"kernels": kernels, **(next(iter(kernels.values())) if len(kernels) == 1 else {})}
