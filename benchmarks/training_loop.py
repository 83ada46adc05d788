"""A training loop, as one has it without ktuned: Triton kernels forward and backward, tuned by ``triton.autotune``.

Two linear layers and a GELU between them learn a fixed map. ``SIZE SECONDS [DEVICE]``; prints a line of JSON for each
step: when it began, its seconds, and its loss. With ``TRAINING_CONFIGS=first`` each kernel has one config.
"""

import json
import os
import sys
from time import monotonic
from typing import Any

import torch
import triton
import triton.language as tl

CONFIGS = [
    triton.Config({"M": m, "N": n, "K": k}, num_warps=warps, num_stages=stages)
    for m, n, k, warps, stages in (
        (64, 64, 32, 4, 3),
        (128, 64, 32, 4, 3),
        (128, 128, 32, 4, 3),
        (128, 128, 64, 8, 3),
        (128, 256, 64, 8, 3),
        (256, 128, 64, 8, 3),
    )
]
WIDE = [triton.Config({"BLOCK": block}, num_warps=4) for block in (512, 1024, 2048)]
if os.environ.get("TRAINING_CONFIGS") == "first":
    del CONFIGS[1:], WIDE[1:]


@triton.jit
def product(a, b, c, m, n, k, a_row, a_column, b_row, b_column, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """Write a @ b into c, which is contiguous."""
    rows = tl.program_id(0) * M + tl.arange(0, M)
    columns = tl.program_id(1) * N + tl.arange(0, N)
    depth = tl.arange(0, K)
    total = tl.zeros((M, N), dtype=tl.float32)
    for start in range(0, k, K):
        left = tl.load(a + rows[:, None] * a_row + (start + depth[None, :]) * a_column)
        right = tl.load(b + (start + depth[:, None]) * b_row + columns[None, :] * b_column)
        total = tl.dot(left, right, total)
    tl.store(c + rows[:, None] * n + columns[None, :], total.to(tl.float16))


@triton.autotune(CONFIGS, key=["m", "n", "k"])
@triton.jit
def forward(a, b, c, m, n, k, a_row, a_column, b_row, b_column, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """Multiply x by the transposed weight."""
    product(a, b, c, m, n, k, a_row, a_column, b_row, b_column, M, N, K)


@triton.autotune(CONFIGS, key=["m", "n", "k"])
@triton.jit
def input_grad(a, b, c, m, n, k, a_row, a_column, b_row, b_column, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """Multiply the gradient by the weight."""
    product(a, b, c, m, n, k, a_row, a_column, b_row, b_column, M, N, K)


@triton.autotune(CONFIGS, key=["m", "n", "k"])
@triton.jit
def weight_grad(a, b, c, m, n, k, a_row, a_column, b_row, b_column, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """Multiply the transposed gradient by x."""
    product(a, b, c, m, n, k, a_row, a_column, b_row, b_column, M, N, K)


@triton.autotune(WIDE, key=["size"])
@triton.jit
def gelu(x, y, size, BLOCK: tl.constexpr):
    """Write x * sigmoid(1.702 x) into y."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < size).to(tl.float32)
    tl.store(y + at, (value * tl.sigmoid(1.702 * value)).to(tl.float16), mask=at < size)


@triton.autotune(WIDE, key=["size"])
@triton.jit
def gelu_grad(x, dy, dx, size, BLOCK: tl.constexpr):
    """Write the gradient of :func:`gelu` into dx."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < size).to(tl.float32)
    gate = tl.sigmoid(1.702 * value)
    slope = gate * (1.0 + 1.702 * value * (1.0 - gate))
    tl.store(dx + at, (tl.load(dy + at, mask=at < size).to(tl.float32) * slope).to(tl.float16), mask=at < size)


def multiplied(kernel: Any, a: Any, b: Any) -> Any:
    """Return a @ b by one of the kernels; all sizes are multiples of the blocks."""
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    kernel[lambda meta: (m // meta["M"], n // meta["N"])](a, b, c, m, n, k, *a.stride(), *b.stride())
    return c


class Linear(torch.autograd.Function):
    """x @ weight.T with kernels of Triton's forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        """Keep both for the backward pass."""
        ctx.save_for_backward(x, weight)
        return multiplied(forward, x, weight.T)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Run in autograd's own thread."""
        x, weight = ctx.saved_tensors
        (dy,) = (gradient.contiguous() for gradient in gradients)
        return multiplied(input_grad, dy, weight), multiplied(weight_grad, dy.T, x)


class Gelu(torch.autograd.Function):
    """GELU with kernels of Triton's."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        """Keep x."""
        ctx.save_for_backward(x)
        y = torch.empty_like(x)
        gelu[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel())
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Run in autograd's own thread."""
        (x,) = ctx.saved_tensors
        (dy,) = (gradient.contiguous() for gradient in gradients)
        dx = torch.empty_like(x)
        gelu_grad[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, dy, dx, x.numel())
        return dx


def main() -> None:
    """Train until the time is over, or until standard input ends."""
    size, seconds = int(sys.argv[1]), float(sys.argv[2])
    device = sys.argv[3] if sys.argv[3:] else "cuda"
    drawn = torch.Generator().manual_seed(0)
    x, wanted, *weights = (torch.randn((size, size), generator=drawn).to(device, torch.float16) for _ in range(4))
    weights = [(weight * size**-0.5).requires_grad_() for weight in weights]
    optimizer = torch.optim.SGD(weights, lr=1e-2, momentum=0.9)
    until = monotonic() + seconds
    while monotonic() < until:
        began = monotonic()
        optimizer.zero_grad()
        hidden = Gelu.apply(Linear.apply(x, weights[0]))
        loss = torch.nn.functional.mse_loss(Linear.apply(hidden, weights[1]).float(), wanted.float())
        # Scaled so that gradients and updates are neither too large nor too small for half precision, at any size.
        (loss * (size**2 / 16)).backward()
        for weight in weights:
            weight.grad /= 10 * size**0.5
        optimizer.step()
        value = loss.item()
        print(json.dumps({"began": began, "seconds": monotonic() - began, "loss": value}), flush=True)


if __name__ == "__main__":
    main()
