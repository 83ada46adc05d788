"""The program of ``libraries.py``: steps of a public library's functions, timed and compared with torch's.

The program knows nothing of ktuned. It prints each figure as a line of JSON as soon as the figure is known: a program
that is stopped has reported its first step.
"""

import argparse
import gc
import json
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch.nn.functional import layer_norm, rms_norm, silu

WARM_UP_STEPS = 10


class Workload(NamedTuple):
    """Steps of a library's functions.

    Attributes:
        step: makes one step, and returns its outputs, gradients included.
        expect: returns what torch gives for the same outputs, in float32.
    """

    step: Callable[[], Sequence[torch.Tensor]]
    expect: Callable[[], Sequence[torch.Tensor]]


def main() -> None:
    """Time the first step and the steady step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("program", choices=WORKLOADS)
    parser.add_argument("--steps", type=int, default=100, help="steps of which the steady one is the median")
    parser.add_argument("--first-config", action="store_true", help="cut the list of each autotuner to its first")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("no GPU: torch.cuda.is_available() is False")
    if options.first_config:
        cut_lists_to_first_config()
    began = perf_counter()
    workload = WORKLOADS[options.program]()
    torch.cuda.synchronize()
    report(import_s=perf_counter() - began)
    began = perf_counter()
    outputs = workload.step()
    torch.cuda.synchronize()
    report(first_step_s=perf_counter() - began)
    expected = list(workload.expect())
    report(first_difference=largest_difference(outputs, expected), keys=count_keys())
    report(steady_ms=time_steps(workload, options.steps), **describe_state(workload, expected))


def report(**fields: Any) -> None:
    """Print a part of the result."""
    print(json.dumps(fields), flush=True)


def describe_state(workload: Workload, expected: Sequence[torch.Tensor]) -> dict[str, Any]:
    """Return the difference of another step, the configs that it launched, and the most memory until now."""
    return {
        "difference": largest_difference(workload.step(), expected),
        "winners": describe_winners(),
        "peak_mib": torch.cuda.max_memory_allocated() / (1 << 20),
    }


def time_steps(workload: Workload, steps: int) -> float:
    """Return the median of a step in ms, from its first launch to the end of its last."""
    for _ in range(WARM_UP_STEPS):
        workload.step()
    taken = []
    for _ in range(steps):
        torch.cuda.synchronize()
        began = perf_counter()
        workload.step()
        torch.cuda.synchronize()
        taken.append(1e3 * (perf_counter() - began))
    return statistics.median(taken)


def largest_difference(outputs: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """Return the largest difference of outputs from what is expected, relative to the largest value expected."""
    differences = [
        float((output.float() - value).abs().max() / value.abs().max().clamp_min(1e-30))
        for output, value in zip(outputs, expected, strict=True)
    ]
    # max() would pass over one that is not a number.
    return max(differences, key=lambda difference: (difference != difference, difference))


def gradients(outputs: torch.Tensor, inputs: Sequence[torch.Tensor], upstream: torch.Tensor) -> list[torch.Tensor]:
    """Return an output, and the gradients of its inputs."""
    return [outputs.detach(), *torch.autograd.grad(outputs, inputs, upstream)]


def cut_lists_to_first_config() -> None:
    """Have each autotuner that is made from now on know the first of its configs alone: nothing is left to tune."""
    from triton.runtime.autotuner import Autotuner

    make = Autotuner.__init__

    def make_with_first(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        self.configs = self.configs[:1]

    Autotuner.__init__ = make_with_first


def count_keys() -> int:
    """Return the number of tuning keys that Triton itself has decided."""
    # FlagGems' cache is a database without a length.
    return sum(len(tuner.cache) if hasattr(tuner.cache, "__len__") else 1 for tuner in called_tuners())


def describe_winners() -> dict[str, str]:
    """Return the config that each autotuned function launched last."""
    return {
        f"{tuner.base_fn.__module__}.{tuner.base_fn.__qualname__}": str(tuner.best_config) for tuner in called_tuners()
    }


def called_tuners() -> Iterable[Any]:
    """Yield this process's autotuned functions that have been called, Triton's tuning or not."""
    from triton.runtime.autotuner import Autotuner

    for thing in gc.get_objects():
        if issubclass(type(thing), Autotuner) and hasattr(thing, "best_config"):
            yield thing


def draw(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Return random numbers on the GPU."""
    return torch.randn(*shape, device="cuda", dtype=dtype)


def copy_leaves(leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return leaves in float32 for torch's own gradients."""
    return [leaf.detach().float().requires_grad_() for leaf in leaves]


def make_norms() -> Workload:
    """Return steps of FLA's RMSNorm, gated RMSNorm and SwiGLU, forward and backward: six functions with 85 configs."""
    from fla.modules.activations import swiglu
    from fla.modules.norm.fused_norm_gate import rms_norm_gated
    from fla.modules.norm.layernorm import rms_norm as fla_rms_norm

    torch.manual_seed(0)
    # FLA takes one row at a time if a row has more than 512 elements, else several rows.
    rows, wide, narrow, eps = 2048, 1024, 256, 1e-5
    wide_upstream, narrow_upstream = draw(rows, wide), draw(rows, narrow)
    leaves = [draw(rows, wide), draw(rows, wide), draw(wide), draw(rows, narrow), draw(rows, narrow), draw(narrow)]
    for leaf in leaves:
        leaf.requires_grad_()

    def step() -> list[torch.Tensor]:
        x, y, weight, a, gate, scale = leaves
        return [
            *gradients(fla_rms_norm(x, weight, None, eps=eps), [x, weight], wide_upstream),
            *gradients(rms_norm_gated(a, gate, scale, None, eps=eps), [a, gate, scale], narrow_upstream),
            *gradients(swiglu(x, y), [x, y], wide_upstream),
        ]

    def expect() -> list[torch.Tensor]:
        x, y, weight, a, gate, scale = copy_leaves(leaves)
        upstream = wide_upstream.float()
        return [
            *gradients(rms_norm(x, (wide,), weight, eps), [x, weight], upstream),
            *gradients(rms_norm(a, (narrow,), scale, eps) * silu(gate), [a, gate, scale], narrow_upstream.float()),
            *gradients(silu(x) * y, [x, y], upstream),
        ]

    return Workload(step, expect)


def make_moe() -> Workload:
    """Return steps of Liger's fused mixture of experts, forward and backward: eight tuning keys of seven functions."""
    from liger_kernel.ops.fused_moe import LigerFusedMoEFunction

    torch.manual_seed(0)
    rows, width, inner, count, chosen_count = 2048, 1024, 512, 8, 2
    tokens, upstream = draw(rows, width), draw(rows, width)
    up, down = width**-0.5 * draw(count, 2 * inner, width), width**-0.5 * draw(count, width, inner)
    scores, chosen = torch.rand(rows, count, device="cuda").softmax(-1).topk(chosen_count)
    leaves, experts = [tokens, up, down, scores.bfloat16()], chosen.int()
    for leaf in leaves:
        leaf.requires_grad_()

    def step() -> list[torch.Tensor]:
        output = LigerFusedMoEFunction.apply(tokens, up, down, experts, leaves[3])
        return gradients(output, leaves, upstream)

    def expect() -> list[torch.Tensor]:
        x, w1, w2, w = given = copy_leaves(leaves)
        output = torch.zeros_like(x)
        for expert in range(count):
            some, places = (experts == expert).nonzero(as_tuple=True)
            gate, linear = (x[some] @ w1[expert].T).chunk(2, dim=-1)
            output = output.index_add(0, some, w[some, places, None] * ((silu(gate) * linear) @ w2[expert].T))
        return gradients(output, given, upstream.float())

    return Workload(step, expect)


def make_mamba() -> Workload:
    """Return steps of Mamba-2's SSD, forward and backward, in chunks: 15 tuning keys.

    ``mamba_ssm`` imports a CUDA extension; its directories ``ops/triton`` and ``utils`` in empty packages are enough.
    """
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined, ssd_chunk_scan_combined_ref

    torch.manual_seed(0)
    batch, length, heads, head_size, state, chunk = 4, 2048, 24, 64, 128, 256
    leaves = [
        draw(batch, length, heads, head_size),
        draw(batch, length, heads),
        -draw(heads, dtype=torch.float32).abs().clamp(max=1.0),
        draw(batch, length, 1, state),
        draw(batch, length, 1, state),
        draw(heads, dtype=torch.float32),
        # Slow decays: the library's reference overflows otherwise, and its gradients are no numbers.
        0.1 * draw(heads, dtype=torch.float32) - 4.0,
    ]
    upstream = draw(batch, length, heads, head_size)
    for leaf in leaves:
        leaf.requires_grad_()

    def step() -> list[torch.Tensor]:
        output = mamba_chunk_scan_combined(*leaves[:5], chunk, D=leaves[5], dt_bias=leaves[6], dt_softplus=True)
        return gradients(output, leaves, upstream)

    def expect() -> list[torch.Tensor]:
        given = copy_leaves(leaves)
        output = ssd_chunk_scan_combined_ref(*given[:5], chunk, D=given[5], dt_bias=given[6], dt_softplus=True)
        return gradients(output, given, upstream.float())

    return Workload(step, expect)


def make_trifast() -> Workload:
    """Return steps of trifast's triangle attention, forward and backward; the library keeps its winners on disk."""
    from trifast import triangle_attention

    torch.manual_seed(0)
    batch, heads, length, head_size = 1, 4, 256, 32
    shape = (batch, heads, length, length)
    leaves = [draw(*shape, head_size), draw(*shape, head_size), draw(*shape, head_size), draw(*shape)]
    upstream, mask = draw(*shape, head_size), torch.zeros(batch, length, length, dtype=torch.bool, device="cuda")
    for leaf in leaves:
        leaf.requires_grad_()

    def step() -> list[torch.Tensor]:
        return gradients(triangle_attention(*leaves, mask), leaves, upstream)

    def expect() -> list[torch.Tensor]:
        query, key, value, bias = given = copy_leaves(leaves)
        scores = query @ key.transpose(-1, -2) * head_size**-0.5 + bias[:, :, None]
        return gradients(scores.softmax(-1) @ value, given, upstream.float())

    return Workload(step, expect)


def make_flag_gems() -> Workload:
    """Return steps of FlagGems' mm, addmm, softmax and layer_norm, forward; the library keeps its winners on disk."""
    import flag_gems

    torch.manual_seed(0)
    size = 2048
    left, right, bias = (draw(size, size, dtype=torch.float16) for _ in range(3))
    weight, shift = (draw(size, dtype=torch.float16) for _ in range(2))

    @torch.no_grad()
    def step() -> list[torch.Tensor]:
        return [
            flag_gems.mm(left, right),
            flag_gems.addmm(bias, left, right),
            flag_gems.softmax(left, -1),
            flag_gems.layer_norm(left, [size], weight, shift)[0],
        ]

    @torch.no_grad()
    def expect() -> list[torch.Tensor]:
        a, b, c, w, s = (value.float() for value in (left, right, bias, weight, shift))
        product = a @ b
        return [product, product + c, a.softmax(-1), layer_norm(a, [size], w, s)]

    return Workload(step, expect)


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "norms": make_norms,
    "moe": make_moe,
    "mamba": make_mamba,
    "trifast": make_trifast,
    "flag_gems": make_flag_gems,
}

if __name__ == "__main__":
    main()
