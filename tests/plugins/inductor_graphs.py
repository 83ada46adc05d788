"""Graphs that are compiled with the hooks for a made-up GPU, in a process of their own: it stays patched.

``python -m tests.plugins.inductor_graphs STAGE`` prints one JSON object. No daemon runs.
"""

import itertools
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from ktuned_inductor.made_up_gpu import compile_graph, make_up_gpu

if sys.argv[1:] != ["cpu"]:
    make_up_gpu()

import torch
from torch._dynamo.utils import counters
from torch._inductor import config

from ktuned.dropin import account
from ktuned_inductor import hooks, loading, seams

SIZES = {"xnumel": 256, "r0_numel": 1024}
DTYPES = {"*bf16": torch.bfloat16, "*fp32": torch.float32, "*i64": torch.int64}


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
    """Compile a graph with reductions, some of them to one number, two matrix products and a convolution."""

    def work(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        products = x @ y.t(), torch.bmm(x.view(4, 64, 1024), y.view(4, 1024, 64))
        images = torch.conv2d(x.view(4, 64, 32, 32), y.view(64, 64, 8, 8), stride=2)
        # Kernels that give one number have an xnumel of 1.
        loss = torch.nn.functional.cross_entropy(x, torch.argmax(y, -1))
        return torch.softmax(x + y, -1), x.sum(0), *products, images, loss, x.sum()

    with config.patch(max_autotune=True, coordinate_descent_tuning=True):
        compile_graph(work, [((256, 1024), "bfloat16")] * 2)


def launch(kernel: Any) -> None:
    """Launch a kernel on tensors of the host; nothing runs."""
    signature, numbers = kernel.triton_meta["signature"], {**SIZES, **kernel.triton_meta["constants"]}
    args = [
        numbers[name] if name in numbers else torch.zeros(1 << 20, dtype=DTYPES[signature[name]])
        for name in (parameter.name for parameter in kernel.fn.params if not parameter.is_constexpr)
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


def fail(where: str) -> dict[str, Any]:
    """Compile a graph while something of this plugin raises, and launch its kernels."""
    hooks.install_hooks()
    name = "read_knobs" if where == "worker" else "decide_kernel"
    module = loading if where == "worker" else hooks
    original, calls = getattr(module, name), itertools.count(1)

    def raise_error(*args: Any) -> Any:
        if where == "second" and next(calls) == 1:
            return original(*args)
        raise RuntimeError("a hook fails")

    setattr(module, name, raise_error)
    kernels = collect_kernels()
    with config.patch(max_autotune_pointwise=True, coordinate_descent_tuning=True):
        compile_graph(lambda x: (x.sum(0), torch.softmax(x, -1)), [((256, 1024), "bfloat16")])
    for kernel in kernels:
        launch(kernel)
    return {
        "compiled": [len(kernel.compile_results) for kernel in kernels],
        "keys": account.keys,
        "left_alone": account.left_alone,
    }


def compile_odd() -> dict[str, Any]:
    """Compile operators with symbolic sizes and scalars, with another dtype, and of one dimension."""
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

    hooks.install_hooks()
    environment = ShapeEnv()
    symbol = environment.create_symbol(4, source=ConstantSource("s"), dynamic_dim=DimDynamic.DYNAMIC)
    batch = environment.create_symintnode(symbol, hint=4)

    def work(
        images: torch.Tensor, weight: torch.Tensor, row: torch.Tensor, x: torch.Tensor, scale: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        return (
            torch.conv2d(images, weight, padding=1),
            torch.conv1d(x.view(1, 64, 64), x.view(64, 64, 1)),
            torch.addmm(row, x, x, alpha=scale.item()),
            torch.bmm(x.view(1, 64, 64), x.view(1, 64, 64), out_dtype=torch.float32),
        )

    given = [(batch, 64, 32, 32), (64, 64, 3, 3), (64,), (64, 64), ()]
    with config.patch(max_autotune=True):
        compile_graph(work, [(shape, "bfloat16") for shape in given], environment)
    return {"keys": account.keys, "left_alone": account.left_alone}


def share_names() -> dict[str, Any]:
    """Compile two graphs whose kernels have one name, and then make two first launches of each, as two threads may."""
    hooks.install_hooks()
    kernels = collect_kernels()
    with config.patch(max_autotune=True, coordinate_descent_tuning=True):
        for columns in (1024, 2048):
            compile_graph(lambda x: (torch.relu(x),), [((256, columns), "bfloat16")])
    for kernel in kernels:
        run = kernel.run
        launch(kernel)
        kernel.run = run
        launch(kernel)
    return {"names": [kernel.inductor_meta["kernel_name"] for kernel in kernels], "keys": account.keys}


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


def compile_untuned(served: str = "") -> dict[str, Any]:
    """Compile a graph in a start that no daemon serves, or that one serves; return if it came from the cache."""
    hooks.install_hooks()
    if not served:
        hooks.find_tuner()
    torch.compiler.config.cache_key_tag = "the program's own"
    with config.patch(max_autotune=True, coordinate_descent_tuning=True):
        compile_graph(lambda x: (x.sum(0),), [((256, 1024), "bfloat16")])
    return {"hits": counters["inductor"]["fxgraph_cache_hit"], "left_alone": account.left_alone}


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


def build(state: str) -> dict[str, Any]:
    """Build the first three configs of each record of this process's home as the daemon's workers do, in one process.

    Returns:
        by function and config, the files of its artifact; under ``libraries`` the libraries that front ends import.
    """
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from ktuned.adoption import AdoptedDirectory
    from ktuned.backends import Unit
    from ktuned.dropin import AdoptedFiles, spool_directory
    from ktuned.spool import CALL_KEY, CallRecord
    from ktuned.worker.front_end import ImportedFiles
    from ktuned_inductor import adoption
    from ktuned_inductor.backend import Build, Inductor

    imported = ImportedFiles(itertools.count(1.0).__next__)
    declared: dict[str, Any] = {}

    def declare(files: Any, backend: str, name: str, declaration: Any, *functions: Any, **options: Any) -> None:
        declared.update(files=files, functions=functions, options=options)

    AdoptedFiles.declare_kernel = declare  # type: ignore[method-assign, assignment]
    backend, found, libraries = Inductor(), {}, set()
    for path in sorted(spool_directory().iterdir()):
        record = CallRecord.from_bytes(path.read_bytes())
        file, name = AdoptedDirectory(Path(state)).write_record(record)
        adoption.adopt(str(file), record.function, record.identity)
        list_configs, declare_inputs, make_build = declared["functions"]
        call = declared["files"].find_call({CALL_KEY: name})
        layouts = {tensor: (spec.dtype, spec.shape, (1,)) for tensor, spec in declare_inputs(call).items()}
        assert [json.loads(text) for text in list_configs(call)] == [dict(knobs) for knobs in record.configs]
        for text in list(list_configs(call))[:3]:
            plain = json.loads(json.dumps(make_build(call, text).given(lambda given=layouts: given).to_plain()))
            libraries.add(json.dumps(plain["library"]))
            unit = Unit("unit", Build.from_plain(plain), (), file, record.function, "sm_90a")
            backend.open_library(plain["library"], unit.build)
            # A choice is rendered to the same source for another problem, or with other warps.
            for _ in range(2):
                lowered = backend.lower(unit)
                assert not imported.find_changed_file()
                imported.record_imports()
            assert isinstance(lowered, bytes), lowered
            unit = Unit("unit", unit.build, (), file, record.function, "sm_90a", lowered)
            with TemporaryDirectory() as scratch:
                Path(scratch, "unit").mkdir()
                (compiled,) = backend.compile([unit], Path(scratch))
                found[f"{record.function} {text}"] = compiled.message or sorted(os.listdir(Path(scratch, "unit")))
    return {"built": found, "libraries": sorted(libraries)}


if __name__ == "__main__":
    stages: dict[str, Callable[..., Any]] = {
        "record": record,
        "fail": fail,
        "odd": compile_odd,
        "names": share_names,
        "untuned": compile_untuned,
        "kill": kill_at,
        "cpu": multiply_on_cpu,
        "build": build,
    }
    print(json.dumps(stages[sys.argv[1]](*sys.argv[2:])))
