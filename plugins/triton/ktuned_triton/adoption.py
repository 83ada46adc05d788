"""Declares an application's function as a kernel in ktuned's workers, from the record that the application left.

A call is plain data, so the kernel file imports nothing of the application. Only the front end imports the
application's library, because Triton compiles Python source; compile workers and lanes use the front end's result. If
no import finds the function, the application itself has left that result with the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from ktuned.dropin import AdoptedFiles
from ktuned_triton.build import Build, Library
from ktuned_triton.call import Call
from ktuned_triton.declaration import Declaration

CHECKS: Final[Mapping[str, Any]] = {"reference": "default", "rtol": 1e-2, "atol": 1e-2, "max_mismatched_ratio": 1e-3}
"""How outputs are judged: configs sum half-precision products in different orders, so their last digits differ."""


def declare_tensors(files: AdoptedFiles[Any], call: Call) -> Mapping[str, Any]:
    """Return the declared inputs of a recorded call: each is one row of elements up to the end of its storage."""
    return {
        name: files.declare_tensor(
            call,
            entry.elements,
            entry.dtype,
            entry.fill,
            output=True,
            remainder=entry.remainder,
            memory=entry.memory,
            offset=entry.offset,
        )
        for name, entry in call.tensors.items()
    }


def adopt(file: str, name: str, identity: str) -> None:
    """Declare the kernel of an application's function; called by the kernel files that the daemon writes."""
    files = AdoptedFiles(file, Call)
    declared = files.read_declaration(Declaration, identity)

    def make_build(call: Call, config: str) -> Build:
        if call.recipes[config].lowered:
            return call.make_build(config, declared.qualname.rpartition(".")[2], library=Library())
        return call.make_build(
            config,
            f"{declared.module}:{declared.qualname}",
            library=Library(declared.module.partition(".")[0], declared.paths),
            cache_key=declared.cache_key,
            globals_read=declared.constants,
        )

    files.declare_kernel(
        "triton",
        name,
        declared,
        lambda call: call.recipes,
        partial(declare_tensors, files),
        make_build,
        setup=declared.tensors,
        timing="graph" if declared.is_timed_by_graph else "events",
        **CHECKS,
    )
