"""An adopted function's files, as a worker reads them.

The daemon writes them from the spool's records: a kernel file of a few lines, which names its declaration, and a
directory ``calls/`` with declarations, calls, tensors and programs. Files in ``calls/`` are named by a digest of their
content and never change.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ktuned.dropin.recorded_call import CAPTURED, Declaration, RecordedCall
from ktuned.model import Config, Problem, canonical
from ktuned.spool import CALL_KEY, CALLS

if TYPE_CHECKING:
    from ktuned.backends import Build
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

    def declare_kernel(
        self,
        backend: str,
        name: str,
        declared: Declaration,
        list_configs: Callable[[Call], Iterable[str]],
        declare_inputs: Callable[[Call], Mapping[str, Any]],
        make_build: Callable[[Call, str], Build],
        **options: Any,
    ) -> None:
        """Declare the function's kernel; all that it needs is in the recorded call that a problem names.

        Args:
            backend: the plugin's name.
            name: the kernel's name.
            declared: the function's declaration.
            list_configs: returns the texts of a call's configs, in the application's order.
            declare_inputs: declares the tensors of a call.
            make_build: returns the Build of a call's config, given by its text.
            options: further options of the kernel.
        """
        from ktuned.declaration import kernel, space

        def yield_configs(p: Any) -> Iterator[Config]:
            yield from map(json.loads, list_configs(self.find_call(p)))

        @kernel(
            backend=backend,
            name=name,
            space=space(yield_configs),
            specialize=declared.specialize,
            inputs=lambda p: declare_inputs(self.find_call(p)),
            **{"strategy": "exhaustive", "preset": "fast", "is_data": True, **options},
        )
        def make_config_build(p: Any, c: Any) -> Build:
            return make_build(self.find_call(p), canonical(dict(c)))

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
        self,
        call: Call,
        shape: int | tuple[int, ...],
        dtype: str,
        fill: str,
        *,
        low: float | None = None,
        high: float | None = None,
        **fields: Any,
    ) -> TensorSpec:
        """Declare a tensor of a call, with further fields; if it was captured, its content is in the call's file."""
        from ktuned.declaration import tensor

        if fill == CAPTURED:
            return replace(tensor(shape, dtype, "zeros"), file=str(self._directory / call.content), **fields)
        return replace(tensor(shape, dtype, fill, low=low, high=high), **fields)

    def _read_file(self, kind: Any, name: str) -> Any:
        # Imported here, because applications import this module but never read files with it.
        from ktuned.ipc import decoding

        return decoding.convert(json.loads((self._directory / name).read_text()), kind)
