"""A float32 matrix product in C++, with tuned register tiles, cache blocks and threads.

Four configs are wrong on purpose, one for each kind of failure, named by VARIANT. Their other knobs are those of the
default, so the space holds each exactly once.
"""

from ktuned import kernel, space, tensor
from ktuned_tvm_ffi import Build

DEFAULT = dict(TILE_ROWS=2, TILE_COLUMNS=8, BLOCK_ROWS=48, BLOCK_DEPTH=96, THREADS=1, VARIANT="BLOCKED")

VECTOR_REGISTERS_FOR_C = 12
"""Of AVX2's 16 registers; the others hold a row of B and an element of A."""


def tile_fits_registers(p, c):
    """Keep the tiles of C that do not spill."""
    return c.TILE_ROWS * c.TILE_COLUMNS // 8 <= VECTOR_REGISTERS_FOR_C


def is_wrong_once(p, c):
    """Admit each wrong variant only with the default's other knobs."""
    return c.VARIANT == "BLOCKED" or {**c, "VARIANT": "BLOCKED"} == DEFAULT


@kernel(
    backend="tvm_ffi",
    sources=["gemm.cc"],
    space=space(
        TILE_ROWS=[2, 4, 6],
        TILE_COLUMNS=[8, 16, 24],
        BLOCK_ROWS=[48, 192],
        BLOCK_DEPTH=[96, 200],
        THREADS=[1, 2],
        VARIANT=["BLOCKED", "BROKEN_BUILD", "DROPS_TAIL", "NULL_DEREF", "ENDLESS"],
        where=[tile_fits_registers, is_wrong_once],
    ),
    # 400 is not a multiple of 96: blocked products often fail at the tail of the depth.
    problems=[dict(M=384, N=384, K=400)],
    inputs=lambda p: dict(
        A=tensor((p.M, p.K)),
        B=tensor((p.K, p.N)),
        C=tensor((p.M, p.N), output=True),
    ),
    reference=lambda A, B, C: dict(C=A @ B),
    rtol=1e-4,
    atol=1e-4,
    default=DEFAULT,
    flops=lambda p: 2 * p.M * p.N * p.K,
    bytes=lambda p: 4 * (p.M * p.K + p.K * p.N + p.M * p.N),
    preset="fast",
    deadlines=dict(first_launch=3.0),
)
def gemm(p, c):
    """Compile one blocking; the sizes come with the tensors, so one artifact serves every problem."""
    return Build(function="gemm", args=("A", "B", "C"), defines=dict(c))
