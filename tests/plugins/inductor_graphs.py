"""Graphs that are compiled with the hooks for a made-up GPU, in a process of their own: it stays patched.

``python -m tests.plugins.inductor_graphs STAGE`` prints one JSON object. No daemon runs.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from ktuned_inductor.made_up_gpu import compile_graph, make_up_gpu

make_up_gpu()

import torch  # noqa: E402
from torch._inductor import config  # noqa: E402

from ktuned.dropin import account  # noqa: E402
from ktuned_inductor import hooks, seams  # noqa: E402

SIZES = {"xnumel": 256, "r0_numel": 1024}
DTYPES = {"*bf16": torch.bfloat16, "*fp32": torch.float32}


def collect_kernels() -> list[Any]:
    """Return a list that each kernel joins when it has been compiled; a launch of one does nothing."""
    kernels: list[Any] = []

    def hook(precompile: Callable[..., None]) -> Callable[..., None]:
        def precompile_kernel(self: Any, *args: Any, **kwargs: Any) -> None:
            precompile(self, *args, **kwargs)
            kernels.append(self)

        return precompile_kernel

    seams.hook_seam(seams.PRECOMPILE, hook)
    seams.hook_seam(seams.RUN, lambda run: lambda self, *args, **kwargs: None)
    return kernels


def compile_all() -> None:
    """Compile a graph with reductions, two matrix products and a convolution."""

    def work(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        products = x @ y.t(), torch.bmm(x.view(4, 64, 1024), y.view(4, 1024, 64))
        images = torch.conv2d(x.view(4, 64, 32, 32), y.view(64, 64, 8, 8), stride=2)
        return torch.softmax(x + y, -1), x.sum(0), *products, images

    with config.patch(max_autotune=True, coordinate_descent_tuning=True):
        compile_graph(work, [((256, 1024), "bfloat16")] * 2)


def launch(kernel: Any) -> None:
    """Launch a kernel on tensors of the host; nothing runs."""
    signature = kernel.triton_meta["signature"]
    args = [
        torch.zeros(1 << 20, dtype=DTYPES[kind]) if kind.startswith("*") else SIZES[name]
        for name, kind in signature.items()
        if kind != "constexpr"
    ]
    kernel.run(*args, stream=0)


def record() -> dict[str, Any]:
    """Compile a graph without a daemon, and launch its kernels twice."""
    hooks.install_hooks()
    kernels = collect_kernels()
    compile_all()
    for kernel in [*kernels, *kernels]:
        launch(kernel)
    compiled = [len(kernel.compile_results) for kernel in kernels]
    armed = [name for kernel in kernels for name in vars(kernel) if name == "run"]
    return {"compiled": compiled, "armed": armed, "keys": account.keys, "left_alone": account.left_alone}


def fail() -> dict[str, Any]:
    """Compile a graph while a hook raises."""
    hooks.install_hooks()

    def raise_error(*args: Any) -> None:
        raise RuntimeError("a hook fails")

    for name in ("decide_kernel", "decide_product"):
        setattr(hooks, name, raise_error)
    kernels = collect_kernels()
    with config.patch(max_autotune_pointwise=True, coordinate_descent_tuning=True):
        compile_graph(lambda x: (x.sum(0),), [((256, 1024), "bfloat16")])
    return {"compiled": [len(kernel.compile_results) for kernel in kernels], "left_alone": account.left_alone}


def kill_at(stage: str) -> None:
    """Compile a graph, and be killed when a hook's original function returns."""
    hooks.install_hooks()
    seam = {"define": seams.DEFINE_KERNEL, "compile": seams.COMPILE_KERNEL, "precompile": seams.PRECOMPILE}.get(stage)

    def kill_after(function: Callable[..., Any]) -> Callable[..., Any]:
        def run_and_kill(*args: Any, **kwargs: Any) -> None:
            function(*args, **kwargs)
            os.kill(os.getpid(), signal.SIGKILL)

        return run_and_kill

    if seam is not None:
        seams.hook_seam(seam, kill_after)
    compile_all()
    os.kill(os.getpid(), signal.SIGKILL)


def multiply_on_cpu() -> dict[str, Any]:
    """Compile a matrix product for the CPU with its choices cut to one, and count what is timed."""
    from torch._inductor.select_algorithm import AlgorithmSelectorCache

    timed: list[int] = []
    for name in ("benchmark", "do_autotuning"):
        setattr(AlgorithmSelectorCache, name, lambda *args, **kwargs: timed.append(1))
    seams.hook_seam(
        seams.SELECT,
        lambda select: lambda self, name, choices, *args, **kwargs: select(self, name, choices[:1], *args, **kwargs),
    )
    x, y = torch.randn(3, 8, 16), torch.randn(3, 16, 8)
    found = torch.compile(torch.bmm, mode="max-autotune-no-cudagraphs")(x, y)
    return {"timed": len(timed), "is_right": torch.allclose(found, torch.bmm(x, y), atol=1e-5)}


def render(calls: str) -> dict[str, Any]:
    """Render and compile the library's choice and two templates of each recorded operator in a file of calls."""
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from ktuned.backends import Unit
    from ktuned_inductor.backend import Build, Inductor
    from ktuned_triton.build import Library

    backend, found = Inductor(), {}
    for call in json.loads(Path(calls).read_text()):
        for choice in call["choices"][:3]:
            names = [*(f"in{number}" for number in range(len(call["inputs"]))), "out"]
            build = Build(
                function=f"torch:{call['operator']}",
                args=tuple(names),
                library=Library("torch"),
                dtypes=dict.fromkeys(names, "bfloat16"),
                operator=call,
                choice=choice,
            )
            unit = Unit(key="unit", build=build, sources=(), kernel_file=Path(), kernel="product", target="sm_90a")
            lowered = backend.lower(unit)
            assert isinstance(lowered, bytes), lowered
            unit = Unit(
                key="unit",
                build=build,
                sources=(),
                kernel_file=Path(),
                kernel="product",
                target="sm_90a",
                lowered=lowered,
            )
            with TemporaryDirectory() as scratch:
                Path(scratch, "unit").mkdir()
                (compiled,) = backend.compile([unit], Path(scratch))
                found[f"{call['operator']} {choice}"] = compiled.message or sorted(os.listdir(Path(scratch, "unit")))
    return found


if __name__ == "__main__":
    stages: dict[str, Callable[..., Any]] = {
        "record": record,
        "fail": fail,
        "kill": kill_at,
        "cpu": multiply_on_cpu,
        "render": render,
    }
    print(json.dumps(stages[sys.argv[1]](*sys.argv[2:])))
