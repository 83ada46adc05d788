"""Triangle attention of trifast, forward and backward; the library keeps its winners on disk."""

import torch

from benchmarks.library_program import Workload, gradients, need_gpu, run_program

BATCH, HEADS, LENGTH, HEAD_SIZE = 1, 4, 256, 32


def make_workload() -> Workload:
    """Return steps of ``triangle_attention``."""
    from trifast import triangle_attention

    torch.manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(BATCH, HEADS, LENGTH, LENGTH, *shape, device="cuda", dtype=torch.bfloat16)

    leaves = [draw(HEAD_SIZE), draw(HEAD_SIZE), draw(HEAD_SIZE), draw()]
    upstream, mask = draw(HEAD_SIZE), torch.zeros(BATCH, LENGTH, LENGTH, dtype=torch.bool, device="cuda")
    for leaf in leaves:
        leaf.requires_grad_()

    def step() -> list[torch.Tensor]:
        return gradients(triangle_attention(*leaves, mask), leaves, upstream)

    def expect() -> list[torch.Tensor]:
        query, key, value, bias = given = [leaf.detach().float().requires_grad_() for leaf in leaves]
        scores = query @ key.transpose(-1, -2) * HEAD_SIZE**-0.5 + bias[:, :, None]
        return gradients(scores.softmax(-1) @ value, given, upstream.float())

    return Workload(step, expect)


if __name__ == "__main__":
    need_gpu()
    run_program(make_workload)
