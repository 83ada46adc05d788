"""Autotuned functions as applications write them."""

from typing import Any

import tilelang
import tilelang.language as T

from ktuned_tilelang import AutoTuner, autotune

SIZE = 1 << 12
TARGET = {"kind": "cuda", "arch": "sm_90a"}


@tilelang.jit(out_idx=[-1], target=TARGET)
def scale(size, factor=3.0, block=128, threads=128):
    """Return a program that scales x into y."""

    @T.prim_func
    def main(x: T.Tensor((size,), "float32"), y: T.Tensor((size,), "float32")):
        with T.Kernel(T.ceildiv(size, block), threads=threads) as bx:
            for i in T.Parallel(block):
                y[bx * block + i] = x[bx * block + i] * factor

    return main


@tilelang.jit(target=TARGET)
def eager(x, y, block: int = 128):
    """Scale x into y in the eager style."""
    size = T.const("size")
    x: T.Tensor[[size], T.float32]
    y: T.Tensor[[size], T.float32]
    with T.Kernel(T.ceildiv(size, block), threads=128) as bx:
        for i in T.Parallel(block):
            y[bx * block + i] = x[bx * block + i] * 3.0


@tilelang.jit(out_idx=[-1], target=TARGET)
def gather(size, block=128):
    """Return a program that reads x at indices, of any number."""
    count = T.dynamic("count")

    @T.prim_func
    def main(x: T.Tensor((size,), "float32"), at: T.Tensor((count,), "int32"), y: T.Tensor((count,), "float32")):
        with T.Kernel(T.ceildiv(count, block), threads=128) as bx:
            for i in T.Parallel(block):
                if bx * block + i < count:
                    y[bx * block + i] = x[at[bx * block + i]]

    return main


CONFIGS = [{"block": 128}, {"block": 512}]


def make_autotuned_function(function: Any = scale, **options: Any) -> Any:
    """Return a function that has just been decorated."""
    return autotune(**{"configs": CONFIGS, **options})(function)


def make_closure(factor: float) -> Any:
    """Return a function of a config's knobs, as in TileLang's examples."""

    def kernel(block=None):
        @T.prim_func
        def main(x: T.Tensor((SIZE,), "float32"), y: T.Tensor((SIZE,), "float32")):
            with T.Kernel(T.ceildiv(SIZE, block), threads=128) as bx:
                for i in T.Parallel(block):
                    y[bx * block + i] = x[bx * block + i] * factor

        return main

    return kernel


def make_tuner(factor: float, **choices: Any) -> Any:
    """Return a tuner of a closure, as in TileLang's examples."""
    tuner = AutoTuner.from_kernel(kernel=make_closure(factor), configs=CONFIGS)
    return tuner.set_compile_args(out_idx=[-1], target=TARGET).set_profile_args(**choices)
