"""Renders a recorded operator's choice again, as Inductor renders it in the program: in a front end, without a GPU.

A graph with this one operator is lowered for a made-up GPU with the properties of the program's. The hook on the choices
takes the recorded one, has Inductor render its template, and ends the lowering there. The rendered source then is a
Triton file like any other: its tensors and sizes are the arguments, and its blocks are written into it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ktuned.model import canonical
from ktuned_inductor.generated import KERNEL
from ktuned_inductor.made_up_gpu import make_up_gpu
from ktuned_inductor.operators import OUTPUT, read_choice
from ktuned_inductor.seams import CHOICES, SELECT, hook_seam

_DECORATOR = re.compile(r"@triton_heuristics\.template\(\n.*?\n\)\n(?=@triton\.jit)", re.DOTALL)


@dataclass(frozen=True)
class Rendered:
    """A rendered template: a plain Triton file, and the launch of its kernel."""

    source: str
    args: tuple[str | int, ...]
    grid: tuple[int, int, int]
    num_warps: int
    num_stages: int


class _Found(BaseException):
    """Ends the lowering of a graph."""

    def __init__(self, caller: Any) -> None:
        self.caller = caller


def render_choice(operator: Mapping[str, Any], config: str) -> Rendered:
    """Render one choice of an operator; ``operator`` are the fields of an ``OperatorCall`` as plain data.

    Raises:
        LookupError: Inductor does not offer this choice for the operator here.
        Exception: whatever Inductor raises.
    """
    make_up_gpu({**operator["device"], "clock_rate": 0})
    import torch
    from torch._inductor import config as inductor

    settings = operator["settings"]
    torch.set_float32_matmul_precision(settings["float32_precision"])
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = settings["reduced_f16"]
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = settings["reduced_bf16"]

    def keep_recorded_choice(finalize: Any) -> Any:
        def finalize_choices(*args: Any, **kwargs: Any) -> Any:
            return [choice for choice in finalize(*args, **kwargs) if canonical(read_choice(choice)) == config]

        return finalize_choices

    def end_lowering(select: Any) -> Any:
        def select_choice(self: Any, name: str, choices: Any, *args: Any, **kwargs: Any) -> Any:
            if choices:
                raise _Found(choices[0])
            raise LookupError(f"Inductor does not offer {config} for this operator here")

        return select_choice

    put_back = [hook_seam(CHOICES, keep_recorded_choice), hook_seam(SELECT, end_lowering)]
    try:
        with inductor.patch(
            max_autotune_gemm=True, max_autotune_gemm_search_space=settings["search_space"], fx_graph_cache=False
        ):
            _lower_operator(operator)
    except _Found as found:
        return _read_template(found.caller, len(operator["inputs"]))
    finally:
        for put in put_back:
            put()
    raise LookupError("Inductor lowers this operator without a choice here")


def _lower_operator(operator: Mapping[str, Any]) -> None:
    import torch
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    function, scalars = getattr(torch.ops.aten, operator["operator"]).default, dict(operator["scalars"])
    environment = ShapeEnv()
    mode = FakeTensorMode(shape_env=environment)
    with mode:
        given = [
            torch.empty_strided(
                tuple(layout["shape"]), tuple(layout["strides"]), dtype=getattr(torch, layout["dtype"]), device="cuda"
            )
            for layout in operator["inputs"]
        ]
        traced = make_fx(lambda *tensors: function(*tensors, **scalars))(*given)
        graph = GraphLowering(traced, shape_env=environment)
        with V.set_graph_handler(graph), V.set_fake_mode(mode):
            graph.run(*given)


def _read_template(caller: Any, inputs: int) -> Rendered:
    request = caller.bmreq
    with open(request.module_path) as file:
        source = file.read().replace(request.kernel_name, KERNEL)
    if getattr(request, "workspace_size", None):
        raise LookupError("its template needs a workspace")
    *sizes, x, y, z = request.extra_args
    return Rendered(
        _DECORATOR.sub("", source).replace("triton_helpers.set_driver_to_gpu()", ""),
        (*(f"in{number}" for number in range(inputs)), OUTPUT, *map(int, sizes)),
        (int(x), int(y), int(z)),
        int(request.num_warps),
        int(request.num_stages),
    )
