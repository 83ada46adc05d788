"""Six norm and activation functions of FLA, forward and backward: 85 configs in all, on small tensors."""

import torch
from torch.nn.functional import rms_norm as torch_rms_norm
from torch.nn.functional import silu

from benchmarks.library_program import Workload, gradients, need_gpu, run_program

ROWS = 2048
WIDE = 1024
"""FLA takes a row at a time where it has more than 512 elements: four configs forward, three backward."""
NARROW = 256
"""Some rows at a time: nine configs each way."""
EPS = 1e-5


def make_workload() -> Workload:
    """Return steps of RMSNorm, of the gated RMSNorm, and of SwiGLU (30 configs each way)."""
    from fla.modules.activations import swiglu
    from fla.modules.norm.fused_norm_gate import rms_norm_gated
    from fla.modules.norm.layernorm import rms_norm

    torch.manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    wide, gate_of_wide, wide_upstream = (draw(ROWS, WIDE) for _ in range(3))
    narrow, gate, narrow_upstream = (draw(ROWS, NARROW) for _ in range(3))
    wide_weight, narrow_weight = draw(WIDE), draw(NARROW)
    for leaf in (wide, gate_of_wide, narrow, gate, wide_weight, narrow_weight):
        leaf.requires_grad_()

    def step() -> list[torch.Tensor]:
        return [
            *gradients(rms_norm(wide, wide_weight, None, eps=EPS), [wide, wide_weight], wide_upstream),
            *gradients(
                rms_norm_gated(narrow, gate, narrow_weight, None, eps=EPS),
                [narrow, gate, narrow_weight],
                narrow_upstream,
            ),
            *gradients(swiglu(wide, gate_of_wide), [wide, gate_of_wide], wide_upstream),
        ]

    def expect() -> list[torch.Tensor]:
        x, y, weight, upstream = (value.detach().float() for value in (wide, gate_of_wide, wide_weight, wide_upstream))
        a, g, scale, below = (value.detach().float() for value in (narrow, gate, narrow_weight, narrow_upstream))
        for leaf in (x, y, weight, a, g, scale):
            leaf.requires_grad_()
        return [
            *gradients(torch_rms_norm(x, (WIDE,), weight, EPS), [x, weight], upstream),
            *gradients(torch_rms_norm(a, (NARROW,), scale, EPS) * silu(g), [a, g, scale], below),
            *gradients(silu(x) * y, [x, y], upstream),
        ]

    return Workload(step, expect)


if __name__ == "__main__":
    need_gpu()
    run_program(make_workload)
