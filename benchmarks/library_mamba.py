"""Mamba-2's SSD, forward and backward, in chunks: 15 tuning keys.

``mamba_ssm`` imports a CUDA extension; its directories ``ops/triton`` and ``utils`` below empty packages are enough.
"""

import torch

from benchmarks.library_program import Workload, gradients, need_gpu, run_program

BATCH, LENGTH, HEADS, HEAD_SIZE, STATE, CHUNK = 4, 2048, 24, 64, 128, 256


def make_workload() -> Workload:
    """Return steps of ``mamba_chunk_scan_combined``."""
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined, ssd_chunk_scan_combined_ref

    torch.manual_seed(0)

    def draw(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=dtype)

    values = [
        draw(BATCH, LENGTH, HEADS, HEAD_SIZE),
        draw(BATCH, LENGTH, HEADS),
        -draw(HEADS, dtype=torch.float32).abs().clamp(max=1.0),
        draw(BATCH, LENGTH, 1, STATE),
        draw(BATCH, LENGTH, 1, STATE),
    ]
    # Slow decays: the library's reference overflows otherwise, and its gradients are no numbers.
    skip, bias = draw(HEADS, dtype=torch.float32), 0.1 * draw(HEADS, dtype=torch.float32) - 4.0
    upstream = draw(BATCH, LENGTH, HEADS, HEAD_SIZE)
    leaves = [*values, skip, bias]
    for leaf in leaves:
        leaf.requires_grad_()

    def step() -> list[torch.Tensor]:
        output = mamba_chunk_scan_combined(*values, CHUNK, D=skip, dt_bias=bias, dt_softplus=True)
        return gradients(output, leaves, upstream)

    def expect() -> list[torch.Tensor]:
        given = [leaf.detach().float().requires_grad_() for leaf in leaves]
        output = ssd_chunk_scan_combined_ref(*given[:5], CHUNK, D=given[5], dt_bias=given[6], dt_softplus=True)
        return gradients(output, given, upstream.float())

    return Workload(step, expect)


if __name__ == "__main__":
    need_gpu()
    run_program(make_workload)
