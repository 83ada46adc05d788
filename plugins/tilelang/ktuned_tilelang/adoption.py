"""Declares an application's function as a kernel in ktuned's workers, from the record that the application left.

The record has the program of each config, so nothing of the application is imported, and a closure, a lambda or a
notebook's function is tuned like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ktuned.dropin import AdoptedFiles
from ktuned_tilelang.call import Call
from ktuned_tilelang.declaration import Declaration

_PHASES = ("first_launch", "check", "timing")


def adopt(file: str, name: str, identity: str) -> None:
    """Declare the kernel of an application's function; called by the kernel files that the daemon writes."""
    files = AdoptedFiles(file, Call)
    declared = files.read_declaration(Declaration, identity)

    def declare_inputs(call: Call) -> Mapping[str, Any]:
        return {
            name: files.declare_tensor(
                call, entry.shape, entry.dtype, entry.fill, output=name in call.outputs, low=entry.low, high=entry.high
            )
            for name, entry in call.tensors.items()
        }

    # The only reference is the first config's results.
    judged: dict[str, Any] = {"check": None} if declared.skips_check else {"reference": "default"}
    files.declare_kernel(
        "tilelang",
        name,
        declared,
        lambda call: call.programs,
        declare_inputs,
        Call.make_build,
        rtol=declared.rtol,
        atol=declared.atol,
        max_mismatched_ratio=declared.max_mismatched_ratio,
        setup=declared.restored,
        timing=declared.timing,
        deadlines=dict.fromkeys(_PHASES, declared.timeout_s) if declared.timeout_s > 0 else None,
        early_stop=declared.early_stop or 3.0,
        **judged,
    )
