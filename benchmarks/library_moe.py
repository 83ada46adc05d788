"""Liger's fused mixture of experts, forward and backward: eight tuning keys of seven functions."""

import torch
from torch.nn.functional import silu

from benchmarks.library_program import Workload, gradients, need_gpu, run_program

TOKENS, WIDTH, INNER, EXPERTS, CHOSEN = 2048, 1024, 512, 8, 2


def make_workload() -> Workload:
    """Return steps of ``LigerFusedMoEFunction``."""
    from liger_kernel.ops.fused_moe import LigerFusedMoEFunction

    torch.manual_seed(0)

    def draw(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (scale * torch.randn(*shape, device="cuda")).bfloat16()

    tokens, upstream = draw(TOKENS, WIDTH), draw(TOKENS, WIDTH)
    up = draw(EXPERTS, 2 * INNER, WIDTH, scale=WIDTH**-0.5)
    down = draw(EXPERTS, WIDTH, INNER, scale=INNER**-0.5)
    scores, chosen = torch.rand(TOKENS, EXPERTS, device="cuda").softmax(-1).topk(CHOSEN)
    weights, experts = scores.bfloat16(), chosen.int()
    for leaf in (tokens, up, down, weights):
        leaf.requires_grad_()

    def step() -> list[torch.Tensor]:
        output = LigerFusedMoEFunction.apply(tokens, up, down, experts, weights)
        return gradients(output, [tokens, up, down, weights], upstream)

    def expect() -> list[torch.Tensor]:
        x, w1, w2, w = (value.detach().float().requires_grad_() for value in (tokens, up, down, weights))
        output = torch.zeros_like(x)
        for expert in range(EXPERTS):
            rows, places = (experts == expert).nonzero(as_tuple=True)
            gate, linear = (x[rows] @ w1[expert].T).chunk(2, dim=-1)
            output = output.index_add(0, rows, w[rows, places, None] * ((silu(gate) * linear) @ w2[expert].T))
        return gradients(output, [x, w1, w2, w], upstream.float())

    return Workload(step, expect)


if __name__ == "__main__":
    need_gpu()
    run_program(make_workload)
