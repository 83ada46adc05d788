"""Renders a recorded operator's choice again, as Inductor renders it in the program: in a front end, without a GPU.

A graph with this one operator is lowered for a made-up GPU with the properties of the program's. A hook keeps the
recorded choice alone, Inductor renders its template, and another hook ends the lowering there. The rendered source is a
Triton file like any other: its tensors and sizes are the arguments, and its blocks are written into it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ktuned_inductor.generated import make_plain_source
from ktuned_inductor.made_up_gpu import H100, make_up_gpu
from ktuned_inductor.operators import CONVOLUTION, OUTPUT, apply_settings, name_choice, name_config
from ktuned_inductor.seams import CHOICES, CONVOLUTIONS, SELECT, hook_seam


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


def render_choice(operator: Mapping[str, Any], wanted: str) -> Rendered:
    """Render the choice of an operator with the name ``wanted``; ``operator`` are the fields of an ``OperatorCall``.

    Raises:
        LookupError: Inductor does not offer this choice for the operator here.
        Exception: whatever Inductor raises.
    """
    make_up_gpu({**H100, **operator["device"]})
    from torch._inductor import config as inductor

    settings = operator["settings"]
    apply_settings(settings)

    def keep_recorded_choice(finalize: Any) -> Any:
        # The self-test renders in a process with the program's hooks.
        finalize = inspect.unwrap(finalize)

        def finalize_choices(*args: Any, **kwargs: Any) -> Any:
            return [choice for choice in finalize(*args, **kwargs) if name_choice(choice) == wanted]

        return finalize_choices

    def keep_recorded_config(find: Any) -> Any:
        find = inspect.unwrap(find)

        def find_configs(*args: Any, **kwargs: Any) -> Any:
            list_configs = find(*args, **kwargs)
            return lambda *sizes, **more: [
                config for config in list_configs(*sizes, **more) if name_config(config) == wanted
            ]

        return find_configs

    def end_lowering(select: Any) -> Any:
        def select_choice(self: Any, name: str, choices: Any, nodes: Any, layout: Any, *_: Any, **__: Any) -> Any:
            if [*map(int, layout.stride)] != [*operator["output"]["strides"]]:
                raise LookupError(f"its output has the strides {layout.stride} here")
            templates = [choice for choice in choices if type(choice).__name__ == "TritonTemplateCaller"]
            if templates:
                raise _Found(templates[0])
            raise LookupError(f"Inductor does not offer {wanted} for this operator here")

        return select_choice

    put_back = [
        hook_seam(CHOICES, keep_recorded_choice),
        hook_seam(CONVOLUTIONS, keep_recorded_config),
        hook_seam(SELECT, end_lowering),
    ]
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
        # A convolution's bias is added apart from it.
        none = (None,) if operator["operator"] == CONVOLUTION else ()
        traced = make_fx(lambda *tensors: function(*tensors, *none, **scalars))(*given)
        graph = GraphLowering(traced, shape_env=environment)
        with V.set_graph_handler(graph), V.set_fake_mode(mode):
            graph.run(*given)


def _read_template(caller: Any, inputs: int) -> Rendered:
    request = caller.bmreq
    with open(request.module_path) as file:
        source = make_plain_source(request.kernel_name, file.read())
    if getattr(request, "workspace_size", None):
        raise LookupError("its template needs a workspace")
    *sizes, x, y, z = request.extra_args
    return Rendered(
        source,
        (*(f"in{number}" for number in range(inputs)), OUTPUT, *map(int, sizes)),
        (int(x), int(y), int(z)),
        int(request.num_warps),
        int(request.num_stages),
    )
