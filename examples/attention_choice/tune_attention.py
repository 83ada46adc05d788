"""Choice of an attention implementation: torch's backends of scaled_dot_product_attention, or torch.compile.

Each choice is a function of this file, selected by a knob. Choices that a device lacks (such as cuDNN on the CPU) end
as `unsupported`.
"""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from ktuned import kernel, space, tensor
from ktuned_torch import Build


def math(q, k, v, out):
    with sdpa_kernel(SDPBackend.MATH):
        out.copy_(scaled_dot_product_attention(q, k, v, is_causal=True))


def flash(q, k, v, out):
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        out.copy_(scaled_dot_product_attention(q, k, v, is_causal=True))


def efficient(q, k, v, out):
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        out.copy_(scaled_dot_product_attention(q, k, v, is_causal=True))


def cudnn(q, k, v, out):
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        out.copy_(scaled_dot_product_attention(q, k, v, is_causal=True))


def composed(q, k, v, out):
    """Attention as in the paper, for torch.compile to fuse."""
    scores = (q @ k.transpose(-2, -1)).float() * q.shape[-1] ** -0.5
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    out.copy_(torch.softmax(scores.masked_fill(future, -torch.inf), dim=-1).to(v.dtype) @ v)


IMPLEMENTATIONS = {function.__name__: function for function in (math, flash, efficient, cudnn, composed)}

COMPILE = {
    "eager": None,
    "default": {"dynamic": False},
    "max-autotune": {"dynamic": False, "mode": "max-autotune-no-cudagraphs"},
}
"""Arguments of `torch.compile` by the knob's value."""


def exact(q, k, v, out):
    """Compute in float32 for any inputs."""
    with sdpa_kernel(SDPBackend.MATH):
        return scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=True)


def qkv(p):
    shape = (p.BATCH, p.HEADS, p.LENGTH, p.WIDTH)
    inputs = {name: tensor(shape, p.DTYPE, fill="normal") for name in ("q", "k", "v")}
    return {**inputs, "out": tensor(shape, p.DTYPE, output=True)}


@kernel(
    backend="torch",
    space=space(
        IMPLEMENTATION=list(IMPLEMENTATIONS),
        COMPILE=list(COMPILE),
        # The backends are single calls, with nothing to fuse.
        where=lambda p, c: c.COMPILE == "eager" or c.IMPLEMENTATION == "composed",
    ),
    problems=[dict(BATCH=1, HEADS=8, LENGTH=1024, WIDTH=64, DTYPE="bfloat16")],
    inputs=qkv,
    reference=exact,
    # bfloat16 has eight significant bits.
    rtol=2e-2,
    atol=2e-2,
    default=dict(IMPLEMENTATION="math", COMPILE="eager"),
    # On CUDA, and where it chooses by timing, torch.compile runs on the lane, while the kernel is loaded.
    deadlines=dict(load=180.0),
)
def attention(p, c):
    return Build(function=IMPLEMENTATIONS[c.IMPLEMENTATION], args=("q", "k", "v", "out"), compile=COMPILE[c.COMPILE])
