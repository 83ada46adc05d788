"""A kernel whose configs fail, each in a way of its own."""

import tilelang
import tilelang.language as T

FAR = 1 << 44
"""An index outside every tensor."""

TURNS = 1 << 30


@tilelang.jit(pass_configs={tilelang.PassConfigKey.TL_DISABLE_SAFE_MEMORY_ACCESS: True})
def bad(size, mode, block=256):
    """Return a program that doubles x, or fails as ``mode`` says."""
    if mode == "syntax":
        no_such_function()  # type: ignore[name-defined]  # noqa: F821
    factor = 3.0 if mode == "wrong" else 2.0
    shared = 1 << 18 if mode == "shared" else 0

    @T.prim_func
    def main(x: T.Tensor((size,), "float32"), y: T.Tensor((size,), "float32")):
        with T.Kernel(T.ceildiv(size, block), threads=block) as bx:
            thread = T.get_thread_binding()
            if shared > 0:
                room = T.alloc_shared((shared,), "float32")
                room[thread] = x[bx * block + thread]
                y[bx * block + thread] = room[shared - 1 - thread]
            elif mode == "illegal":
                y[T.cast(bx * block + thread, "int64") + T.int64(FAR)] = x[bx * block + thread]
            elif mode == "endless":
                # Each iteration reads what the previous one wrote, so that no compiler can drop it.
                for _ in T.serial(TURNS):
                    for _ in T.serial(TURNS):
                        y[bx * block + thread] = y[bx * block + thread] * 0.5 + x[bx * block + thread]
            else:
                y[bx * block + thread] = x[bx * block + thread] * factor

    return main
