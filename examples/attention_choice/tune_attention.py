"""Which attention to call: the backends of torch's scaled_dot_product_attention, or one that torch.compile makes.

Each choice is a function of this file, and which one is called is a knob. What a device does not have (the CPU knows
nothing of cuDNN) ends as `unsupported`.
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
    """Attention as the paper writes it; for torch.compile to fuse what it can of it."""
    scores = (q @ k.transpose(-2, -1)).float() * q.shape[-1] ** -0.5
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    out.copy_(torch.softmax(scores.masked_fill(future, -torch.inf), dim=-1).to(v.dtype) @ v)


IMPLEMENTATIONS = {function.__name__: function for function in (math, flash, efficient, cudnn, composed)}

COMPILE = {
    "eager": None,
    "default": {"dynamic": False},
    "max-autotune": {"dynamic": False, "mode": "max-autotune-no-cudagraphs"},
}
"""What `torch.compile` is told, by the name that the knob has for it."""


def exact(q, k, v, out):
    """Compute in float32, whatever the inputs are."""
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
        # The backends are single calls, in which there is nothing to fuse.
        where=lambda p, c: c.COMPILE == "eager" or c.IMPLEMENTATION == "composed",
    ),
    problems=[dict(BATCH=1, HEADS=8, LENGTH=1024, WIDTH=64, DTYPE="bfloat16")],
    inputs=qkv,
    reference=exact,
    # bfloat16 keeps eight bits.
    rtol=2e-2,
    atol=2e-2,
    default=dict(IMPLEMENTATION="math", COMPILE="eager"),
    # On CUDA, and where it chooses by timing, torch.compile does its work on the lane, while the kernel is loaded.
    deadlines=dict(load=180.0),
)
def attention(p, c):
    return Build(function=IMPLEMENTATIONS[c.IMPLEMENTATION], args=("q", "k", "v", "out"), compile=COMPILE[c.COMPILE])
