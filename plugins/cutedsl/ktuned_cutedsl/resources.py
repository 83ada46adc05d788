"""Reads the launches of a compiled function from its host code.

The host code stores each launch into a ``cudaLaunchConfig_t`` field by field, so the stores are collected by the
struct's address. The cluster's size is stored into an attribute, just after the config that it belongs to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

LAUNCH_CONFIG = "!llvm.struct<(array<3 x i32>, array<3 x i32>, i64, ptr, ptr, i32)>"
"""The ``cudaLaunchConfig_t`` of the lowered host code: grid, block, shared bytes, stream, attributes, their count."""

LAUNCH_ATTRIBUTE = "!llvm.struct<(i32, array<4 x i8>, array<64 x i8>)>"
_CLUSTER_ATTRIBUTE = 4
_DIMENSIONS = "!llvm.struct<(i32, i32, i32)>"


@dataclass
class Launch:
    """One launch in the host code; ``None`` for values that only the call defines."""

    grid: list[int | None] = field(default_factory=lambda: [None] * 3)
    block: list[int | None] = field(default_factory=lambda: [None] * 3)
    cluster: list[int | None] = field(default_factory=lambda: [1] * 3)
    shared_bytes: int | None = None


def read_launches(ir_module: Any) -> list[Launch]:
    """Return the launches in a compiled function's host code, a module in MLIR's LLVM dialect.

    An empty list if this CuTe DSL has no such bindings: they are private.
    """
    try:
        ir: Any = import_module("cutlass._mlir.ir")
        advance = ir.WalkResult.ADVANCE
    except (ImportError, AttributeError):
        return []
    launches: list[Launch] = []
    bases: dict[Any, Launch] = {}
    attribute: int | None = None

    def visit_operation(operation: Any) -> Any:
        nonlocal attribute
        for kind, base, path, value in _find_stores(operation):
            if kind == LAUNCH_CONFIG and path[:2] in ((0, 0), (0, 1)) and len(path) == 3:
                if base not in bases:
                    bases[base] = Launch()
                    launches.append(bases[base])
                (bases[base].grid, bases[base].block)[path[1]][path[2]] = value
            elif kind == LAUNCH_CONFIG and path == (0, 2) and base in bases:
                bases[base].shared_bytes = value
            elif kind == LAUNCH_ATTRIBUTE and path == (0, 0):
                attribute = value
            elif kind == _DIMENSIONS and attribute == _CLUSTER_ATTRIBUTE and launches:
                launches[-1].cluster[path[1]] = value
        return advance

    with ir_module.context:
        ir_module.operation.walk(visit_operation)
    return launches


def _find_stores(operation: Any) -> Iterator[tuple[str, Any, tuple[int, ...], int | None]]:
    """Yield an operation's store into a struct: its type, pointer, path of the field, and the value if constant."""
    if operation.name != "llvm.store":
        return
    field_pointer = operation.operands[1].owner
    if getattr(field_pointer, "name", "") != "llvm.getelementptr":
        return
    maker = operation.operands[0].owner
    is_constant = getattr(maker, "name", "") == "llvm.mlir.constant"
    constant = getattr(maker.attributes["value"], "value", None) if is_constant else None
    kind = field_pointer.attributes["elem_type"]
    yield (
        str(getattr(kind, "value", kind)),
        field_pointer.operands[0],
        tuple(field_pointer.attributes["rawConstantIndices"]),
        constant if isinstance(constant, int) else None,
    )
