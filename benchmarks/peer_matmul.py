"""The matrix product of `examples/triton_matmul`, as an application has it: under an autotuner, with 72 configs."""

from typing import Any

import torch
import triton
from triton import autotune
from triton_matmul.matmul import matmul_kernel as product

CONFIGS = [
    triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": 8}, num_warps=warps, num_stages=stages)
    for m in (64, 128)
    for n in (64, 128, 256)
    for k in (32, 64)
    for warps in (4, 8)
    for stages in (3, 4, 5)
]

matmul_kernel = autotune(CONFIGS, key=["M", "N", "K"])(product)


def grid(meta: dict[str, Any]) -> tuple[int, ...]:
    """Return one program for each block of c."""
    return (triton.cdiv(meta["M"], meta["BLOCK_M"]) * triton.cdiv(meta["N"], meta["BLOCK_N"]),)


def arguments(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[Any, ...]:
    """Return the arguments of c = a @ b."""
    sizes = (a.shape[0], b.shape[1], a.shape[1])
    return (a, b, c, *sizes, *a.stride(), *b.stride(), *c.stride())
