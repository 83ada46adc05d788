"""Declares what Inductor chooses among as a kernel in ktuned's workers, from the record that the program left."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

from ktuned.dropin import CALLS, AdoptedFiles
from ktuned.model import canonical
from ktuned_inductor.backend import Build
from ktuned_inductor.decisions import Declaration
from ktuned_inductor.generated import GeneratedCall
from ktuned_inductor.operators import CHOICE, LIBRARY, OPERATOR_MODULE, OUTPUT, OperatorCall
from ktuned_triton.adoption import CHECKS, declare_tensors
from ktuned_triton.build import Library

TRIALS: Final = 24
"""Most configs that are compiled and measured of a generated kernel, of which a graph has dozens. Inductor lists two to
eight; each round of its coordinate descent adds as many again."""


def adopt(file: str, name: str, identity: str) -> None:
    """Declare a generated kernel or an operator; called by the kernel files that the daemon writes."""
    declared = AdoptedFiles(file, GeneratedCall).read_declaration(Declaration, identity)
    # One front end serves all kernels of a directory.
    library = Library("torch", (str(Path(file).parent / CALLS),))
    if declared.module == OPERATOR_MODULE:
        _declare_operator(AdoptedFiles(file, OperatorCall), library, name, declared)
    else:
        _declare_generated(AdoptedFiles(file, GeneratedCall), library, name, declared)


def _declare_generated(files: AdoptedFiles[GeneratedCall], library: Library, name: str, declared: Declaration) -> None:
    def make_build(call: GeneratedCall, config: str) -> Build:
        return Build(**vars(call.make_build(config, f"{declared.module}:{declared.qualname}", library=library)))

    def list_first_configs(p: Any) -> list[dict[str, Any]]:
        call = files.find_call(p)
        return [json.loads(text) for text in [*call.recipes][: call.first]]

    files.declare_kernel(
        "inductor",
        name,
        declared,
        lambda call: call.recipes,
        partial(declare_tensors, files),
        make_build,
        setup=declared.tensors,
        prior=list_first_configs,
        strategy="auto",
        trials=TRIALS,
        **CHECKS,
    )


def _declare_operator(files: AdoptedFiles[OperatorCall], library: Library, name: str, declared: Declaration) -> None:
    def declare_inputs(call: OperatorCall) -> Mapping[str, Any]:
        return {
            name: files.declare_tensor(
                call, layout.elements, layout.dtype, "zeros" if name == OUTPUT else "normal", output=name == OUTPUT
            )
            for name, layout in call.tensors.items()
        }

    def make_build(call: OperatorCall, config: str) -> Build:
        plain = json.loads(json.dumps(asdict(call)))
        return Build(
            function=f"torch:{call.operator}",
            args=tuple(call.tensors),
            library=library,
            operator={key: value for key, value in plain.items() if key not in ("choices", "content")},
            choice=json.loads(config)[CHOICE],
        )

    files.declare_kernel(
        "inductor",
        name,
        declared,
        lambda call: [canonical({CHOICE: name}) for name in call.choices],
        declare_inputs,
        make_build,
        default={CHOICE: f"{LIBRARY}{declared.qualname}"},
        **CHECKS,
    )
