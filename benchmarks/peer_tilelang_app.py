"""TileLang on the matrix product of `examples/tilelang_gemm`, in a process of its own; prints its result as JSON.

``theirs|ours DIRECTORY SIZE BACKEND CONFIGS`` tunes configs (a file of JSON) with TileLang's tuner, or with ktuned's
drop-in; ``processes DIRECTORY COUNT`` compiles the kernel file's space in so many processes; ``configs DIRECTORY``
lists it; ``time DIRECTORY CONFIG CONFIG`` times two configs in turns. DIRECTORY holds the example.
"""

import json
import multiprocessing
import os
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

WARMUP, REP = 3, 20
"""As TileLang's example of autotuning has them."""

RTOL, ATOL = 2e-2, 1.0
"""Those of the kernel file."""

ROUNDS = 15
TARGET = "sm_90a"

_size = 0


def kernel(
    block_M: Any = None,
    block_N: Any = None,
    block_K: Any = None,
    num_stages: Any = None,
    thread_num: Any = None,
    enable_rasterization: Any = None,
) -> Any:
    """Return the program of a config, for TileLang's tuner, which reads the parameters' names."""
    from gemm import matmul

    return matmul.get_tir(_size, _size, _size, block_M, block_N, block_K, num_stages, thread_num, enable_rasterization)


def product(a: Any, b: Any) -> Any:
    """Return the reference, which TileLang compares each config with."""
    return a @ b.T


def tuned(tuner: Any, backend: str, configs: list[dict[str, Any]]) -> dict[str, Any]:
    """Tune in TileLang's best mode: configs are measured while others compile, on inputs that are made once."""
    began = perf_counter()
    result = (
        tuner.from_kernel(kernel=kernel, configs=configs)
        .set_compile_args(out_idx=[-1], target="auto", execution_backend=backend)
        .set_profile_args(ref_prog=product, rtol=RTOL, atol=ATOL, cache_input_tensors=True)
        .run(warmup=WARMUP, rep=REP, use_pipeline=True)
    )
    took_s = perf_counter() - began
    return {"tuning_s": took_s, "config": result.config, "latency_us": 1000 * result.latency}


def compiled_in_processes(file: Path, count: int) -> dict[str, Any]:
    """Compile all configs of a kernel file in warm processes."""
    from benchmarks.direct import Space

    space = Space.of(file)
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(count + 1)
    with context.Pool(count, _prepare, (space.backend, ready)) as pool:
        ready.wait()
        began = perf_counter()
        failed = [said for said in pool.imap_unordered(_compile, space.units(TARGET)) if said]
        took_s = perf_counter() - began
    return {"seconds": took_s, "configs": len(space.builds), "failed": len(failed)}


def _prepare(backend: str, ready: Any) -> None:
    from ktuned.backends import Registry

    Registry().load(backend).prepare()
    ready.wait()


def _compile(unit: Any) -> str:
    from ktuned.backends import Registry

    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch, unit.key).mkdir()
        (compiled,) = Registry().load(unit.build.backend).compile([unit], Path(scratch))
    return compiled.message


def main() -> None:
    """Do as the first argument says."""
    global _size
    what, directory, *rest = sys.argv[1:]
    sys.path.insert(0, directory)
    # TileLang's log goes there.
    os.chdir(directory)
    file = Path(directory, "tune_gemm.py")
    found: Any
    if what in ("theirs", "ours"):
        _size = int(rest[0])
        tuners = import_module("ktuned_tilelang" if what == "ours" else "tilelang.autotuner")
        found = tuned(tuners.AutoTuner, rest[1], json.loads(Path(rest[2]).read_text()))
    elif what == "processes":
        found = compiled_in_processes(file, int(rest[0]))
    elif what == "configs":
        from benchmarks.direct import Space

        found = {"configs": [dict(config) for config in Space.of(file).configs]}
    else:
        from benchmarks.sides import latencies_us

        found = {"latencies_us": latencies_us(file, [json.loads(text) for text in rest], ROUNDS)}
    print("\n" + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
