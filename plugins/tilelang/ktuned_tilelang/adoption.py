"""Declares an application's function as a kernel in ktuned's workers, from the record that the application left.

The record has the program of each config, so nothing of the application is imported, and a closure, a lambda or a
notebook's function is tuned like any other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ktuned.dropin import AdoptedFiles
from ktuned.model import Config, canonical
from ktuned_tilelang.build import Build
from ktuned_tilelang.call import Call
from ktuned_tilelang.declaration import Declaration

_PHASES = ("first_launch", "check", "timing")


def adopt(file: str, name: str, identity: str) -> None:
    """Declare the kernel of an application's function; called by the kernel files that the daemon writes."""
    from ktuned.declaration import kernel, space

    files = AdoptedFiles(file, Call)
    declared = files.read_declaration(Declaration, identity)
    adopted = _AdoptedKernel(files)
    # The only reference is the first config's results.
    judged: dict[str, Any] = {"check": None} if declared.skips_check else {"reference": "default"}
    kernel(
        backend="tilelang",
        name=name,
        space=space(adopted.yield_configs),
        specialize=declared.specialize,
        inputs=adopted.declare_inputs,
        rtol=declared.rtol,
        atol=declared.atol,
        max_mismatched_ratio=declared.max_mismatched_ratio,
        setup=declared.restored,
        timing=declared.timing,
        deadlines=dict.fromkeys(_PHASES, declared.timeout_s) if declared.timeout_s > 0 else None,
        early_stop=declared.early_stop or 3.0,
        strategy="exhaustive",
        preset="fast",
        numerics=declared.numerics,
        is_data=True,
        **judged,
    )(adopted.make_build)


class _AdoptedKernel:
    """The space, inputs and Builds of an adopted kernel, all read from the recorded call that a problem names."""

    def __init__(self, files: AdoptedFiles[Call]) -> None:
        self._files = files

    def yield_configs(self, p: Any) -> Iterator[Config]:
        """Yield the configs that make a program, in the application's order."""
        yield from (json.loads(text) for text in self._files.find_call(p).programs)

    def declare_inputs(self, p: Any) -> Mapping[str, Any]:
        """Declare the tensors of a call."""
        call = self._files.find_call(p)
        return {
            name: self._files.declare_tensor(
                call, entry.shape, entry.dtype, entry.fill, output=name in call.outputs, low=entry.low, high=entry.high
            )
            for name, entry in call.tensors.items()
        }

    def make_build(self, p: Any, c: Any) -> Build:
        """Return a config's Build."""
        return self._files.find_call(p).make_build(canonical(dict(c)))
