"""A matrix product whose knobs split its bits: K in parts, summed in one program, or by atomics of several."""

from typing import Any

import triton
import triton.language as tl

from ktuned import kernel, space, tensor
from ktuned_triton import Build

SIZE = 512
"""Rows and columns of the product, and twice that is summed up: some 10 µs on an H100."""

KINDS = {"float16": "ieee", "bfloat16": "ieee", "float32": "ieee", "tf32": "tf32"}
"""How float32 is multiplied, by the problem's kind."""


ANCHOR = dict(BLOCK_M=32, BLOCK_N=32, BLOCK_K=32, SPLIT=1, ATOMIC=0, WARPS=4, STAGES=2)


@triton.jit
def split_matmul(
    a,
    b,
    c,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT: tl.constexpr,
    ATOMIC: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Compute one block of c = a @ b, or with ATOMIC one of SPLIT parts of it, which is added to what is there."""
    blocks_n = tl.cdiv(N, BLOCK_N)
    rows = tl.program_id(0) // blocks_n * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(0) % blocks_n * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    length = K // SPLIT
    targets = c + rows[:, None] * N + columns[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for part in range(1 if ATOMIC else SPLIT):
        start = (tl.program_id(1) if ATOMIC else part) * length
        partial = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for step in range(0, length, BLOCK_K):
            left = tl.load(a + rows[:, None] * K + (start + step + inner)[None, :])
            right = tl.load(b + (start + step + inner)[:, None] * N + columns[None, :])
            partial = tl.dot(left, right, partial, input_precision=PRECISION)
        total += partial
    if ATOMIC:
        tl.atomic_add(targets, total)
    else:
        tl.store(targets, total)


def launch_options(kind: str, config: Any) -> tuple[dict[str, Any], tuple[int, int]]:
    """Return the constants of a config (a mapping, or a ktuned config) and its grid."""
    constants = {name: config[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "SPLIT", "ATOMIC")}
    blocks = (SIZE // config["BLOCK_M"]) * (SIZE // config["BLOCK_N"])
    grid = blocks, config["SPLIT"] if config["ATOMIC"] else 1
    return {**constants, "PRECISION": KINDS[kind]}, grid


def element_type(kind: str) -> str:
    """Return the dtype of a problem's inputs."""
    return "float32" if kind == "tf32" else kind


@kernel(
    backend="triton",
    space=space(
        BLOCK_M=[32, 64],
        BLOCK_N=[32, 64],
        BLOCK_K=[32, 64],
        SPLIT=[1, 2, 4],
        ATOMIC=[0, 1],
        WARPS=[4],
        STAGES=[2, 4],
        where=lambda p, c: c.SPLIT > 1 or c.ATOMIC == 0,
    ),
    problems=[dict(KIND=kind) for kind in KINDS],
    inputs=lambda p: dict(
        a=tensor((SIZE, 2 * SIZE), element_type(p.KIND), fill="normal"),
        b=tensor((2 * SIZE, SIZE), element_type(p.KIND), fill="normal"),
        c=tensor((SIZE, SIZE), "float32", output=True),
    ),
    # The atomics add to what is there.
    setup=lambda tensors: tensors["c"].zero_(),
    reference=lambda a, b: (a.double() @ b.double()).float(),
    rtol=2e-2,
    atol=0.2,
    default=ANCHOR,
    numerics="exact",
)
def same_bits(p, c):
    constants, grid = launch_options(p.KIND, c)
    return Build(
        function=split_matmul,
        args=("a", "b", "c", SIZE, SIZE, 2 * SIZE),
        constants=constants,
        grid=grid,
        num_warps=c.WARPS,
        num_stages=c.STAGES,
    )
