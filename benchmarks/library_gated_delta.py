"""The gated delta rule of FLA, forward, in chunks."""

import torch
from torch.nn.functional import logsigmoid, normalize

from benchmarks.library_program import Workload, need_gpu, run_program

BATCH, LENGTH, HEADS, KEYS, VALUES = 4, 2048, 8, 128, 128
COMPARED = 1
"""Sequences that are computed again, token by token."""


def make_workload() -> Workload:
    """Return steps of ``chunk_gated_delta_rule``."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule

    torch.manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(BATCH, LENGTH, HEADS, *shape, device="cuda", dtype=torch.float32)

    query, key = (normalize(draw(KEYS), dim=-1).bfloat16() for _ in range(2))
    value = draw(VALUES).bfloat16()
    beta = draw().sigmoid().bfloat16()
    decay = logsigmoid(draw())

    @torch.no_grad()
    def step() -> list[torch.Tensor]:
        output, state = chunk_gated_delta_rule(query, key, value, decay, beta, output_final_state=True)
        return [output[:COMPARED], state[:COMPARED]]

    @torch.no_grad()
    def expect() -> list[torch.Tensor]:
        q, k, v, b, g = (tensor[:COMPARED].float() for tensor in (query, key, value, beta, decay))
        output, state = naive_recurrent_gated_delta_rule(q, k, v, b, g, output_final_state=True)
        return [output, state]

    return Workload(step, expect)


if __name__ == "__main__":
    need_gpu()
    run_program(make_workload)
