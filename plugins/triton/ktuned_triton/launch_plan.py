"""The content of ``launch.json``: everything that the driver needs to launch a compiled kernel, besides the cubin."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from ktuned_triton.descriptors import Descriptor, TensorMap

WARP_THREADS = 32

Value = bool | int | float | str | Descriptor | TensorMap
"""A parameter's value: a tensor of ``inputs`` by its name, a number, or a tensor map (a descriptor until the kernel is
compiled)."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of the machine code: Triton's name of its type (``*fp16``, ``i32``, ``fp32``), and its value.

    ``is_aligned`` is false for a tensor whose address need not be a multiple of 16.
    """

    type: str
    value: Value
    is_aligned: bool = True

    @property
    def tensor(self) -> str | None:
        """Name of the tensor whose address is passed; ``None`` for a number."""
        if isinstance(self.value, TensorMap):
            return self.value.tensor
        return self.value if isinstance(self.value, str) else None

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Self:
        """Read a parameter's fields as plain data."""
        value = data["value"]
        if isinstance(value, Mapping):
            value = TensorMap.from_plain(value) if "tensor" in value else Descriptor.from_plain(value)
        return cls(data["type"], value, data.get("is_aligned", True))


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """The launch of one cubin.

    Attributes:
        function: the Triton function's name, which names its files in Triton's cache.
        symbol: the kernel's name in the cubin.
        target: the architecture that it was compiled for: ``sm_90a``.
        parameters: the parameters in order. Arguments that Triton compiled in (constexprs, ints that are 1, ``None``)
            are left out. Two more pointers follow: to the global scratch memory and to the profiler's, null if there is
            none.
        grid: programs in x, y, z. A program is a whole cluster, so a program in x is ``cluster`` blocks.
        warps: warps of a block.
        cluster: blocks of a cluster.
        shared_bytes: dynamic shared memory of a block.
        global_scratch_bytes: scratch memory of a block.
        profile_scratch_bytes: the profiler's scratch memory of a block.
        is_cooperative: whether all blocks must be resident at once.
        is_dependent: whether it may start before its predecessor has ended (programmatic dependent launch).
    """

    function: str
    symbol: str
    target: str
    parameters: tuple[Parameter, ...]
    grid: tuple[int, int, int]
    warps: int
    cluster: int = 1
    shared_bytes: int = 0
    global_scratch_bytes: int = 0
    profile_scratch_bytes: int = 0
    is_cooperative: bool = False
    is_dependent: bool = False

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.warps * WARP_THREADS

    @property
    def blocks(self) -> tuple[int, int, int]:
        """Blocks that the driver launches in x, y, z."""
        x, y, z = self.grid
        return x * self.cluster, y, z

    def to_json(self) -> str:
        """Return the text of ``launch.json``."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read :meth:`to_json`'s text."""
        fields: Mapping[str, Any] = json.loads(text)
        parameters = tuple(map(Parameter.from_plain, fields["parameters"]))
        return cls(**{**fields, "parameters": parameters, "grid": tuple(fields["grid"])})
