"""Declares an application's function as a kernel in ktuned's workers, from the record that the application left.

A call is plain data, so the kernel file imports nothing of the application. Only the front end imports the
application's library, because Triton compiles Python source; compile workers and lanes use the front end's result.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ktuned.dropin import AdoptedFiles
from ktuned.model import Config, canonical
from ktuned_triton.build import Build
from ktuned_triton.call import Call
from ktuned_triton.declaration import Declaration
from ktuned_triton.library import Library

RTOL, ATOL = 1e-2, 1e-2
"""Configs sum half-precision products in different orders, so their last digits differ."""

MAX_MISMATCHED_RATIO = 1e-3


def adopt(file: str, name: str, identity: str) -> None:
    """Declare the kernel of an application's function; called by the kernel files that the daemon writes."""
    from ktuned.declaration import kernel, space

    files = AdoptedFiles(file, Call)
    declared = files.read_declaration(Declaration, identity)
    adopted = _AdoptedKernel(files, declared)
    kernel(
        backend="triton",
        name=name,
        space=space(adopted.yield_configs),
        specialize=declared.specialize,
        inputs=adopted.declare_inputs,
        reference="default",
        rtol=RTOL,
        atol=ATOL,
        max_mismatched_ratio=MAX_MISMATCHED_RATIO,
        setup=declared.tensors,
        timing="graph" if declared.is_timed_by_graph else "events",
        strategy="exhaustive",
        preset="fast",
        numerics=declared.numerics,
        is_data=True,
    )(adopted.make_build)


class _AdoptedKernel:
    """The space, inputs and Builds of an adopted kernel, all read from the recorded call that a problem names."""

    def __init__(self, files: AdoptedFiles[Call], declared: Declaration) -> None:
        self._files = files
        self._declared = declared

    def yield_configs(self, p: Any) -> Iterator[Config]:
        """Yield the configs that are left after the application's pruning, in the application's order."""
        yield from (json.loads(text) for text in self._files.find_call(p).recipes)

    def declare_inputs(self, p: Any) -> Mapping[str, Any]:
        """Declare the tensors of a call, each as one row of elements up to the end of its storage."""
        call = self._files.find_call(p)
        return {
            name: self._files.declare_tensor(call, entry.elements, entry.dtype, entry.fill, output=True)
            for name, entry in call.tensors.items()
        }

    def make_build(self, p: Any, c: Any) -> Build:
        """Return a config's Build."""
        declared = self._declared
        return self._files.find_call(p).make_build(
            canonical(dict(c)),
            f"{declared.module}:{declared.qualname}",
            library=Library(declared.module.partition(".")[0], declared.paths),
            cache_key=declared.cache_key,
            globals_read=declared.constants,
        )
