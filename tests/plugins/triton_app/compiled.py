"""A program that lets Inductor tune its own kernels, and compiles a call of a Triton function of its own."""

from typing import Any

import torch
import triton
import triton.language as tl

CONFIGS = [triton.Config({"BLOCK": block}) for block in (256, 512)]


@triton.autotune(CONFIGS, key=["size"])
@triton.jit
def doubled(x, y, size, BLOCK: tl.constexpr):
    """Write 2 x into y."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < size) * 2, mask=at < size)


def double(x: Any) -> Any:
    """Return 2 x by the Triton function."""
    y = torch.empty_like(x)
    doubled[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel())
    return y


def network(x: Any) -> Any:
    """Need a matrix product, a reduction and elementwise code."""
    return torch.softmax(torch.nn.functional.gelu(x @ x.T), -1) + 1


if __name__ == "__main__":
    x = torch.randn((256, 256), device="cuda")
    made = torch.compile(network, mode="max-autotune-no-cudagraphs")(x)
    torch.testing.assert_close(made, network(x), rtol=1e-2, atol=1e-2)
    print("inductor's own kernels: right", flush=True)
    torch.testing.assert_close(torch.compile(lambda x: double(x) + 1)(x), 2 * x + 1)
    print("a compiled call: right", flush=True)
    torch.testing.assert_close(double(x), 2 * x)
    print("a call: right", type(doubled).__name__, flush=True)
