"""Matrix products and convolutions in the program: which choice Inductor lowers them to, and the record of an open one.

A case
    Inductor lowers ``aten.bmm`` and has 22 choices: cuBLAS, and a Triton template with 21 configs. Rendering, compiling
    and timing them takes seconds. The hook gets the choices before they are rendered, and returns one: the winner that
    the daemon knows, else cuBLAS, which the default mode would call. The record holds the operator, the layouts of its
    inputs and the choices' names as plain data. A front end renders them again (:mod:`~ktuned_inductor.rendering`).

*Convolutions.* Inductor renders a template for each config that one of its methods lists. The hook lists the winner's
config alone, or none. The layouts of the operator's tensors are known when a choice is taken; then it is recorded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from ktuned.dropin import NotTunable, RecordedCall, find_device_model, shorten_dtype
from ktuned_inductor.decisions import Decision, decisions
from ktuned_inductor.generated import locate_origin
from ktuned_inductor.made_up_gpu import H100

CHOICE: Final = "choice"
"""The only knob of an operator: a choice's template and its parameters, as in ``triton::mm BLOCK_K=32 num_warps=4``."""

OPERATOR_MODULE: Final = "aten"
"""What an operator's declaration has in place of a module."""

LIBRARY: Final = "aten::"
"""Prefix of that knob for the library's own kernel."""

OUTPUT: Final = "out"

_DECIDED: Final = "ktuned_decided"
"""The attribute of Inductor's graph that holds, by the names of its nodes, the decisions about operators, the names of
their templates, and whether one of these is the winner."""

OPERATORS: Final = ("mm", "addmm", "bmm", "baddbmm")

CONVOLUTION: Final = "convolution"

_DERIVED = ("EVEN_K=", "hint_override=")
"""Parameters that follow from the shapes."""


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
        settings: Inductor's and torch's settings that decide what a choice is rendered to.
        device: the GPU's properties.
        choices: their names.
    """

    operator: str
    inputs: tuple[Layout, ...]
    output: Layout
    scalars: Mapping[str, Any]
    settings: Mapping[str, Any]
    device: Mapping[str, Any]
    choices: tuple[str, ...]

    def list_configs(self) -> list[dict[str, Any]]:
        """Return the configs that stand for its choices."""
        return [{CHOICE: name} for name in self.choices]

    @property
    def tensors(self) -> dict[str, Layout]:
        """All tensors by name."""
        return {**{f"in{number}": layout for number, layout in enumerate(self.inputs)}, OUTPUT: self.output}


def name_choice(choice: Any) -> str:
    """Return the name of a matrix product's choice that is not rendered yet."""
    return _join_name(choice.template.uid, choice.params.to_serializeable_dict())


def name_config(config: Any) -> str:
    """Return the name of a convolution's config."""
    sizes = {"num_stages": config.num_stages, "num_warps": config.num_warps}
    return _join_name(CONVOLUTION, {**config.kwargs, **sizes})


def _join_name(uid: str, parameters: Mapping[str, Any]) -> str:
    named = [f"{name}={value}" for name, value in sorted(parameters.items()) if value is not None]
    return " ".join([str(uid), *(text for text in named if not text.startswith(_DERIVED))])


def decide_product(choices: Sequence[Any], kernel_inputs: Any, operator: str) -> list[Any]:
    """Return the choices that are rendered for a matrix product: at most one template; all if Inductor must choose.

    Inductor may offer an operator's choices in several calls: those of libraries, then the templates. So the choices
    of a call without templates are returned, and :func:`take_choice` takes one in the end.

    Raises:
        Exception: whatever Inductor raises when it describes the operator.
    """
    from torch._inductor import config

    has_library = "ATEN" in config.max_autotune_gemm_backends.upper()
    is_tuned = config.max_autotune or config.max_autotune_gemm
    if operator not in OPERATORS or not has_library or not is_tuned or kernel_inputs.device_type != "cuda":
        return list(choices)
    library = [choice for choice in choices if type(choice.template).__name__ == "ExternKernelChoice"]
    templates = [choice for choice in choices if type(choice.template).__name__ == "TritonTemplate"]
    if not templates:
        return library
    by_name = {name_choice(choice): choice for choice in templates}
    nodes, scalars = kernel_inputs.nodes(), dict(kernel_inputs._scalars)
    *_, left, right = inputs = [*map(_describe_node, nodes)]
    shape = (*left.shape[:-1], right.shape[-1])
    contiguous = tuple(prod(shape[place + 1 :]) for place in range(len(shape)))
    output = Layout(_name_dtype(kernel_inputs.out_dtype()), shape, contiguous)
    device = kernel_inputs.device().index or 0
    decision = _decide_operator(operator, (*shape, left.shape[-1]), inputs, device, scalars, *by_name)
    _record_operator(decision, nodes, output, scalars, device, by_name)
    return _find_winner(decision, by_name) or library


def decide_convolution(configs: Sequence[Any]) -> list[Any]:
    """Return the configs of which Inductor renders templates for the convolution that it lowers: at most one.

    Raises:
        Exception: whatever Inductor raises when it describes the operator.
    """
    from torch._inductor import config
    from torch._inductor.virtualized import V

    node = V.graph.current_node
    is_tuned = config.max_autotune or config.max_autotune_gemm
    has_library = "ATEN" in config.max_autotune_conv_backends.upper()
    if str(node.target) != "aten.convolution.default" or not is_tuned or not has_library:
        return list(configs)
    tensors, scalars = _split_arguments(node)
    if tensors[1].dim() < 4:
        # Inductor has no such templates for one dimension. The library's kernel is taken, as in the default mode.
        return _find_winner(None, {})
    by_name = {name_config(entry): entry for entry in configs}
    inputs = [_describe_layout(value.shape, value.stride(), value.dtype) for value in tensors]
    shape = (*inputs[0].shape, *inputs[1].shape)
    more = (scalars, bool(V.graph.layout_opt), *by_name)
    decision = _decide_operator(CONVOLUTION, shape, inputs, tensors[0].device.index or 0, *more)
    return _find_winner(decision, by_name)


def _find_winner(decision: Decision | None, by_name: Mapping[str, Any]) -> list[Any]:
    """Return the winner of the node that Inductor lowers, if it has one; :func:`take_choice` takes its template."""
    from torch._inductor.virtualized import V

    winner = None if decision is None else by_name.get(decision.winner.get(CHOICE, ""))
    vars(V.graph).setdefault(_DECIDED, {})[V.graph.current_node.name] = decision, tuple(by_name), winner is not None
    return [] if winner is None else [winner]


def _split_arguments(node: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return a convolution's input and weight, and its other arguments; Inductor adds the bias by itself."""
    names = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
    rest = [_read_hints(value) if isinstance(value, list | tuple) else value for value in node.args[3:]]
    return [node.args[place].meta["val"] for place in (0, 1)], dict(zip(names, rest, strict=True))


def _read_hints(sizes: Iterable[Any]) -> tuple[int, ...]:
    """Return sizes of Inductor's, of torch's or of FX's as numbers: the hints of symbolic ones."""
    from torch._inductor import config
    from torch._inductor.virtualized import V

    known: Any = V.graph.sizevars
    read = getattr(known, "optimization_hints", None) or known.size_hints
    values = (getattr(size, "meta", {}).get("val", size) for size in sizes)
    plain = [getattr(getattr(value, "node", None), "expr", value) for value in values]
    return tuple(map(int, read(plain, fallback=config.unbacked_symint_fallback)))


def _describe_layout(sizes: Iterable[Any], strides: Iterable[Any], dtype: Any) -> Layout:
    return Layout(_name_dtype(dtype), _read_hints(sizes), _read_hints(strides))


def _describe_node(node: Any) -> Layout:
    return _describe_layout(node.get_size(), node.get_stride(), node.get_dtype())


def _name_dtype(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _record_operator(
    decision: Decision, nodes: Sequence[Any], output: Layout, scalars: Mapping[str, Any], device: int, names: Any
) -> None:
    operator, inputs = decision.declaration.qualname, tuple(map(_describe_node, nodes))

    def pack_call() -> tuple[OperatorCall, dict[str, Any], dict[str, bytes]]:
        if output.dtype != inputs[-1].dtype:
            raise NotTunable(f"its output has the dtype {output.dtype}, and its input {inputs[-1].dtype}")
        if any(hasattr(value, "free_symbols") for value in scalars.values()):
            raise NotTunable("it has a symbolic scalar")
        call = OperatorCall(
            operator=operator,
            inputs=inputs,
            output=output,
            scalars=scalars,
            settings=read_settings(),
            device=_read_device(device),
            choices=(f"{LIBRARY}{operator}", *names),
        )
        return call, {}, {}

    decisions.record_decision(decision, pack_call)


def take_choice(choices: Sequence[Any], input_nodes: Sequence[Any], layout: Any) -> list[Any]:
    """Return the one rendered choice of an operator that was decided; all choices of any other operator."""
    from torch._inductor.virtualized import V

    node = getattr(V.graph, "current_node", None)
    decided = getattr(V.graph, _DECIDED, {})
    if node is None or node.name not in decided:
        return list(choices)
    decision, names, has_winner = decided[node.name]
    if decision is not None and decision.declaration.qualname == CONVOLUTION:
        output = _describe_layout(layout.size, layout.stride, layout.dtype)
        _record_operator(decision, input_nodes[:2], output, _split_arguments(node)[1], layout.device.index or 0, names)
    templates = [choice for choice in choices if has_winner and type(choice).__name__ == "TritonTemplateCaller"]
    return list(templates[-1:] or choices[:1])


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


def apply_settings(settings: Mapping[str, Any]) -> None:
    """Set what :func:`read_settings` has read of torch, for this process."""
    import torch

    matmul = torch.backends.cuda.matmul
    torch.set_float32_matmul_precision(settings["float32_precision"])
    matmul.allow_fp16_reduced_precision_reduction = settings["reduced_f16"]
    matmul.allow_bf16_reduced_precision_reduction = settings["reduced_bf16"]


def _read_device(index: int) -> dict[str, Any]:
    import torch

    found = torch.cuda.get_device_properties(index)
    return {name: getattr(found, name) for name in H100 if hasattr(found, name)}


def _decide_operator(
    operator: str, shape: Iterable[int], inputs: Sequence[Layout], device: int, *more: Any
) -> Decision:
    """Return the decision about the operator of the node that Inductor lowers; ``more`` decides about it as well."""
    from torch._inductor.virtualized import V

    return decisions.make_decision(
        locate_origin([V.graph.current_node]),
        operator,
        {"shape": "x".join(map(str, shape)), "dtype": shorten_dtype(inputs[-1].dtype)},
        find_device_model(device),
        module=OPERATOR_MODULE,
        qualname=operator,
        # Layouts and symbolic scalars become text.
        source=json.dumps([operator, inputs, read_settings(), more], default=str),
    )
