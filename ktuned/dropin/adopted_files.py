"""An adopted function's files, as a worker reads them.

The daemon writes them from the spool's records: a kernel file of a few lines, which names its declaration, and a
directory ``calls/`` with declarations, calls, tensors and programs. Files in ``calls/`` are named by a digest of their
content and never change.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ktuned.dropin.recorded_call import CAPTURED, Declaration, RecordedCall
from ktuned.model import Problem
from ktuned.spool import CALL_KEY, CALLS

if TYPE_CHECKING:
    from ktuned.declaration import TensorSpec

Declared = TypeVar("Declared", bound=Declaration)
Call = TypeVar("Call", bound=RecordedCall)


class AdoptedFiles(Generic[Call]):
    """The files that lie beside one kernel file; ``kind`` is the plugin's class of calls."""

    def __init__(self, kernel_file: str, kind: type[Call]) -> None:
        self._directory = Path(kernel_file).parent / CALLS
        self._kind = kind
        self._calls: dict[str, Call] = {}

    def read_declaration(self, kind: type[Declared], identity: str) -> Declared:
        """Return the declaration of a function."""
        declared: Declared = self._read_file(kind, f"{identity}.declaration.json")
        return declared

    def find_call(self, problem: Problem) -> Call:
        """Return the call that a problem names; each call is read once.

        Raises:
            ValueError: the problem names no call.
        """
        if CALL_KEY not in problem:
            raise ValueError("an application's call is needed: run the application, which records it")
        name = str(problem[CALL_KEY])
        if name not in self._calls:
            self._calls[name] = self._read_file(self._kind, f"{name}.call.json")
        return self._calls[name]

    def declare_tensor(
        self, call: Call, shape: int | tuple[int, ...], dtype: str, fill: str, *, output: bool, **limits: Any
    ) -> TensorSpec:
        """Declare a tensor of a call; if it was captured, its content is in the call's file."""
        from ktuned.declaration import tensor

        if fill != CAPTURED:
            return tensor(shape, dtype, fill, output=output, **limits)
        return replace(tensor(shape, dtype, "zeros", output=output), file=str(self._directory / call.content))

    def _read_file(self, kind: Any, name: str) -> Any:
        # Imported here, because applications import this module but never read files with it.
        from ktuned.ipc import decoding

        return decoding.convert(json.loads((self._directory / name).read_text()), kind)
