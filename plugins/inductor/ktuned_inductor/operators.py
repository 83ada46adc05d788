"""Matrix products in the program: which choice Inductor lowers them to, and the record of one that is not tuned yet.

A case
    Inductor lowers ``aten.bmm`` and has 22 choices: cuBLAS, and a Triton template with 21 configs. Rendering, compiling
    and timing them takes seconds. The hook gets the choices before they are rendered, and returns one: the winner that
    the daemon knows, else cuBLAS, which the default mode would call. The record holds the operator, the layouts of its
    inputs and the choices' parameters as plain data. A front end renders them again (:mod:`~ktuned_inductor.rendering`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from ktuned.dropin import RecordedCall, find_device_model, shorten_dtype
from ktuned.model import canonical
from ktuned_inductor.decisions import Decision, Declaration, decisions, name_function
from ktuned_inductor.generated import locate_origin
from ktuned_triton.environment import find_deciding_variables

CHOICE: Final = "choice"
"""The knob that names a choice's template: ``aten::mm``, ``triton::mm``."""

OPERATOR_MODULE: Final = "aten"
"""What an operator's declaration has in place of a module."""

LIBRARY: Final = "aten::"
"""Prefix of that knob for the library's own kernel."""

OUTPUT: Final = "out"

_DECIDED: Final = "ktuned_decided"
"""Marks an operator's node in the graph."""

OPERATORS: Final = ("mm", "addmm", "bmm", "baddbmm")

_DERIVED = ("EVEN_K", "hint_override")
"""Parameters that follow from the shapes."""

_PROPERTIES = (
    "name",
    "major",
    "minor",
    "total_memory",
    "multi_processor_count",
    "warp_size",
    "shared_memory_per_block",
    "shared_memory_per_block_optin",
    "shared_memory_per_multiprocessor",
    "max_threads_per_multi_processor",
    "max_threads_per_block",
    "regs_per_multiprocessor",
    "L2_cache_size",
)


@dataclass(frozen=True)
class Layout:
    """A tensor of an operator, with the hints of symbolic sizes."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def elements(self) -> int:
        """The elements from its first one to its last one."""
        spans = ((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        return 1 + sum(spans) if prod(self.shape) else 0


@dataclass(frozen=True, kw_only=True)
class OperatorCall(RecordedCall):
    """An operator with its inputs, and the choices among which it is lowered.

    Attributes:
        operator: its name in ATen.
        inputs: its tensors, in order.
        output: its result.
        scalars: its other arguments.
        symbolic: the dimensions of inputs that are symbolic, as ``[input, dimension]``.
        settings: Inductor's and torch's settings that decide what a choice is rendered to.
        device: the GPU's properties.
        choices: the texts of the configs.
    """

    operator: str
    inputs: tuple[Layout, ...]
    output: Layout
    scalars: Mapping[str, Any]
    symbolic: tuple[tuple[int, int], ...]
    settings: Mapping[str, Any]
    device: Mapping[str, Any]
    choices: tuple[str, ...]

    @property
    def tensors(self) -> dict[str, Layout]:
        """All tensors by name."""
        return {**{f"in{number}": layout for number, layout in enumerate(self.inputs)}, OUTPUT: self.output}


def read_choice(choice: Any) -> dict[str, Any]:
    """Return a choice that is not rendered yet as a config."""
    knobs: dict[str, Any] = {CHOICE: choice.template.uid}
    for name, value in choice.params.to_serializeable_dict().items():
        if isinstance(value, bool | int | float | str) and name not in _DERIVED:
            knobs[name] = value
    return knobs


def decide_product(choices: Sequence[Any], kernel_inputs: Any, operator: str) -> list[Any]:
    """Return the choices that are rendered for a matrix product: at most one template; all if Inductor must choose.

    Inductor may offer an operator's choices in several calls: those of libraries, then the templates. So the choices
    of a call without templates are returned, and :func:`take_choice` takes one in the end.

    Raises:
        Exception: whatever Inductor raises when it describes the operator.
    """
    from torch._inductor import config
    from torch._inductor.virtualized import V

    has_library = "ATEN" in config.max_autotune_gemm_backends.upper()
    is_tuned = config.max_autotune or config.max_autotune_gemm
    if operator not in OPERATORS or not has_library or not is_tuned or kernel_inputs.device_type != "cuda":
        return list(choices)
    library = [choice for choice in choices if type(choice.template).__name__ == "ExternKernelChoice"]
    templates = [choice for choice in choices if type(choice.template).__name__ == "TritonTemplate"]
    if not templates:
        return library
    default = {CHOICE: f"{LIBRARY}{operator}"}
    by_text = {canonical(read_choice(choice)): choice for choice in templates}
    call = _describe_product(kernel_inputs, operator, (canonical(default), *by_text))
    decision = _decide(call, kernel_inputs.device().index)
    if not decision.is_recorded:
        decisions.record(decision, list(map(json.loads, call.choices)), lambda: (call, {}, {}))
    V.graph.current_node.meta[_DECIDED] = True
    winner = None if decision.winner is None else by_text.get(canonical(dict(decision.winner)))
    return library if winner is None else [winner]


def take_choice(choices: Sequence[Any]) -> list[Any]:
    """Return the one rendered choice of an operator that was decided; all choices of any other operator."""
    from torch._inductor.virtualized import V

    node = getattr(V.graph, "current_node", None)
    if len(choices) < 2 or node is None or not node.meta.get(_DECIDED):
        return list(choices)
    templates = [choice for choice in choices if type(choice).__name__ == "TritonTemplateCaller"]
    return list(templates[-1:] or choices[:1])


def _describe_product(kernel_inputs: Any, operator: str, choices: tuple[str, ...]) -> OperatorCall:
    shapes, strides = kernel_inputs.shapes_hinted(), kernel_inputs.strides_hinted()
    dtypes = [str(dtype).removeprefix("torch.") for dtype in kernel_inputs.dtypes()]
    inputs = tuple(
        Layout(dtype, tuple(map(int, shape)), tuple(map(int, stride)))
        for dtype, shape, stride in zip(dtypes, shapes, strides, strict=True)
    )
    (*batch, rows, _), columns = inputs[-2].shape, inputs[-1].shape[-1]
    shape = (*batch, rows, columns)
    contiguous = tuple(prod(shape[place + 1 :]) for place in range(len(shape)))
    symbolic = tuple(
        (number, dimension)
        for number, sizes in enumerate(kernel_inputs.shapes_symbolic())
        for dimension, size in enumerate(sizes)
        if getattr(size, "free_symbols", ())
    )
    return OperatorCall(
        operator=operator,
        inputs=inputs,
        output=Layout(str(kernel_inputs.out_dtype()).removeprefix("torch."), shape, contiguous),
        scalars=dict(kernel_inputs._scalars),
        symbolic=symbolic,
        settings=read_settings(),
        device=_read_device(kernel_inputs.device().index),
        choices=choices,
    )


def read_settings() -> dict[str, Any]:
    """Return the settings with which a choice is rendered."""
    import torch
    from torch._inductor import config

    matmul = torch.backends.cuda.matmul
    return {
        "float32_precision": torch.get_float32_matmul_precision(),
        "reduced_f16": bool(matmul.allow_fp16_reduced_precision_reduction),
        "reduced_bf16": bool(matmul.allow_bf16_reduced_precision_reduction),
        "search_space": str(config.max_autotune_gemm_search_space),
    }


def _read_device(index: int | None) -> dict[str, Any]:
    import torch

    found = torch.cuda.get_device_properties(index or 0)
    return {name: getattr(found, name) for name in _PROPERTIES if hasattr(found, name)}


def _decide(call: OperatorCall, index: int | None) -> Decision:
    import torch
    import triton
    from torch._inductor.virtualized import V

    node = V.graph.current_node
    file, line, *rest = (*locate_origin(iter([node])), "", "")
    layouts = [(layout.dtype, layout.shape, layout.strides) for layout in call.inputs]
    declaration = Declaration(
        name=name_function(file, line, *rest[:1], call.operator, *rest[1:2]),
        module=OPERATOR_MODULE,
        qualname=call.operator,
        specialize=("shape", "dtype"),
        variables=find_deciding_variables(),
        versions=(str(torch.__version__), str(triton.__version__)),
        source=canonical(
            {"call": json.dumps([call.operator, layouts, call.scalars, call.symbolic, call.settings, call.choices])}
        ),
        tensors=tuple(call.tensors),
    )
    shape = "x".join(map(str, (*call.output.shape, call.inputs[-2].shape[-1])))
    problem = {"shape": shape, "dtype": shorten_dtype(call.inputs[-1].dtype)}
    return decisions.decide(declaration, problem, find_device_model(index or 0))
