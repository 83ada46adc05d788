"""A GPU that answers Inductor's questions, so that graphs are compiled for it in a process without one.

Inductor asks torch for a GPU's properties and its driver for a target while it lowers a graph. With these answers it
generates and compiles the same kernels as on a machine with that GPU. Nothing can be launched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final

from ktuned_inductor.seams import LOAD_KERNEL

H100: Final = {
    "name": "NVIDIA H100 80GB HBM3",
    "major": 9,
    "minor": 0,
    "total_memory": 80 << 30,
    "multi_processor_count": 132,
    "warp_size": 32,
    "shared_memory_per_block": 49152,
    "shared_memory_per_block_optin": 232448,
    "shared_memory_per_multiprocessor": 233472,
    "max_threads_per_multi_processor": 2048,
    "max_threads_per_block": 1024,
    "regs_per_multiprocessor": 65536,
    "L2_cache_size": 50 << 20,
    "clock_rate": 1_980_000,
}
"""Properties as torch names them."""


def make_up_gpu(properties: Mapping[str, Any] = H100) -> None:
    """Have torch, Triton and Inductor answer as if this process had one GPU; until the process ends."""
    make_up_device(properties)
    from torch._inductor import async_compile
    from torch._inductor.runtime import triton_heuristics
    from torch._subclasses import fake_tensor

    replaced: list[tuple[Any, str, Callable[..., Any]]] = [
        (fake_tensor, "init_gpu_context", lambda device: None),
        (async_compile, LOAD_KERNEL.name, load_without_driver),
        (triton_heuristics.CachingAutotuner, "_make_launchers", lambda self: None),
    ]
    for owner, name, answer in replaced:
        setattr(owner, name, answer)


def make_up_device(properties: Mapping[str, Any]) -> None:
    """Have torch and Triton answer as if this process had one GPU; until the process ends."""
    import torch

    found = SimpleNamespace(**properties, is_integrated=False, gcnArchName="")
    capability = found.major, found.minor
    _make_up_driver(found)
    answers: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda *_, **__: found.major >= 8,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda _: None,
        "synchronize": lambda *_: None,
        "get_device_name": lambda *_: found.name,
        "get_device_capability": lambda *_: capability,
        "get_device_properties": lambda *_: found,
        "get_arch_list": lambda: [f"sm_{found.major}{found.minor}"],
        "get_rng_state": lambda *_, **__: torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": lambda *_, **__: None,
        "is_current_stream_capturing": lambda: False,
        # Behind functions that Inductor copies when it is imported.
        "_lazy_init": lambda: None,
        "_get_device_properties": lambda _: found,
        # Behind the context manager torch.cuda.device.
        "_exchange_device": lambda _: 0,
        "_maybe_exchange_device": lambda _: 0,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    # A torch for the CPU has no such functions.
    library: Any = torch._C
    library._cuda_getDevice = lambda: 0
    library._cuda_getCurrentRawStream = lambda _: 0
    if torch.version.cuda is None:
        torch.version.cuda = "12.8"


def _make_up_driver(found: Any) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    answers = {
        "max_shared_mem": found.shared_memory_per_block_optin,
        "max_num_regs": found.regs_per_multiprocessor,
        "multiprocessor_count": found.multi_processor_count,
        "warpSize": found.warp_size,
    }
    driver.set_active(
        SimpleNamespace(
            get_current_target=lambda: GPUTarget("cuda", found.major * 10 + found.minor, 32),
            get_current_device=lambda: 0,
            get_current_stream=lambda *_: 0,
            utils=SimpleNamespace(get_device_properties=lambda _: answers),
        )
    )


def load_without_driver(kernel_name: str, source_code: str) -> Any:
    """Load a generated kernel as Inductor does, in a process in which Triton finds no driver."""
    from torch._inductor.codecache import PyCodeCache
    from torch._inductor.runtime import triton_helpers

    triton_helpers.set_driver_to_gpu = lambda: None
    return getattr(PyCodeCache.load(source_code), kernel_name)


def compile_graph(
    function: Callable[..., Any], tensors: Sequence[tuple[Sequence[Any], str]], environment: Any = None
) -> Any:
    """Compile a function of tensors of a made-up GPU, given by shapes and dtypes, and return Inductor's code.

    A size may be symbolic; ``environment`` is then the environment of shapes in which it was made.
    """
    import torch
    from torch._guards import TracingContext, tracing
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    # Without an environment of shapes Inductor's graph cache is not used.
    mode = FakeTensorMode(shape_env=environment or ShapeEnv())
    with mode:
        given = [torch.empty(shape, device="cuda", dtype=getattr(torch, dtype)) for shape, dtype in tensors]
        graph = make_fx(function, decomposition_table=select_decomp_table())(*given)
        with tracing(TracingContext(mode)):
            return compile_fx_inner(graph, given)
