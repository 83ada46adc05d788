"""The content of ``kernel.json``: everything besides the code that TileLang needs to load a compiled kernel."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from ktuned.model import Unsupported
from ktuned_tilelang.execution import CODE_FILES


@dataclass(frozen=True, slots=True)
class Recipe:
    """A compiled kernel, for TileLang to load.

    Attributes:
        tilelang: the version of TileLang that compiled it.
        function: the kernel's name in its code.
        target: the architecture that it was compiled for: ``sm_90a``.
        target_config: TileLang's target.
        execution_backend: how TileLang runs it.
        parameters: the names of its parameters, in order.
        out_idx: the indices of the parameters that a call returns.
        pass_configs: the pass configs that it was compiled with.
        compile_flags: the compiler flags that it was compiled with.
        code: digests of the code files by name.
    """

    tilelang: str
    function: str
    target: str
    target_config: Mapping[str, Any]
    execution_backend: str
    parameters: tuple[str, ...]
    out_idx: tuple[int, ...]
    pass_configs: Mapping[str, Any] = field(default_factory=dict)
    compile_flags: tuple[str, ...] = ()
    code: Mapping[str, str] = field(default_factory=dict)

    @property
    def code_files(self) -> tuple[str, ...]:
        """The code files that TileLang loads; it is given the first and finds the others.

        Raises:
            Unsupported: this plugin does not know the execution backend.
        """
        if self.execution_backend not in CODE_FILES:
            raise Unsupported(
                f"this artifact is for the execution backend {self.execution_backend!r}, which is unknown"
            )
        return CODE_FILES[self.execution_backend]

    def to_json(self) -> str:
        """Return the text of ``kernel.json``."""
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read :meth:`to_json`'s text."""
        fields: dict[str, Any] = json.loads(text)
        sequences = {name: tuple(fields[name]) for name in ("parameters", "out_idx", "compile_flags")}
        return cls(**{**fields, **sequences})
