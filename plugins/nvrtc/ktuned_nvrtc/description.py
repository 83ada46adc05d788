"""The content of ``kernel.json``: everything that a launch of a compiled kernel needs, besides the cubin."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Self

from ktuned.backends import Unit
from ktuned_nvrtc.build import Build, pad_to_three


@dataclass(frozen=True)
class Description:
    """A compiled kernel.

    Attributes:
        entry: its C++ name.
        lowered: its symbol in the cubin.
        target: the architecture that it was compiled for: ``sm_90a``.
        grid: blocks in x, y, z.
        block: threads of a block in x, y, z.
        cluster: blocks of a cluster in x, y, z.
        shared_bytes: dynamic shared memory of a block.
        constants: the symbols of the Build's constants, by name.
    """

    entry: str
    lowered: str
    target: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    cluster: tuple[int, ...]
    shared_bytes: int
    constants: Mapping[str, str]

    @classmethod
    def from_compiled(cls, build: Build, unit: Unit, symbols: Mapping[str, str]) -> Self:
        """Describe a unit's kernel; ``symbols`` has the cubin's symbols by name expression."""
        return cls(
            build.entry,
            symbols[build.entry],
            unit.target,
            pad_to_three(build.grid),
            pad_to_three(build.block),
            pad_to_three(build.cluster),
            build.shared_bytes,
            {name: symbols[f"&{name}"] for name in sorted(build.constants)},
        )

    def to_json(self) -> str:
        """Return the text of ``kernel.json``; without constants, it has no field for them."""
        described = {name: value for name, value in asdict(self).items() if name != "constants" or value}
        return json.dumps(described, indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read :meth:`to_json`'s text."""
        described = {"constants": {}, **json.loads(text)}
        return cls(**{field.name: described[field.name] for field in fields(cls)})
