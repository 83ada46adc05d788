"""Four functions of FlagGems: mm, addmm, softmax and layer_norm, forward; the library keeps its winners on disk."""

import torch

from benchmarks.library_program import Workload, need_gpu, run_program

SIZE = 2048


def make_workload() -> Workload:
    """Return steps of the four functions."""
    import flag_gems

    torch.manual_seed(0)
    left, right, bias = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.float16) for _ in range(3))
    weight, shift = (torch.randn(SIZE, device="cuda", dtype=torch.float16) for _ in range(2))

    @torch.no_grad()
    def step() -> list[torch.Tensor]:
        return [
            flag_gems.mm(left, right),
            flag_gems.addmm(bias, left, right),
            flag_gems.softmax(left, -1),
            flag_gems.layer_norm(left, [SIZE], weight, shift)[0],
        ]

    @torch.no_grad()
    def expect() -> list[torch.Tensor]:
        a, b, c, w, s = (value.float() for value in (left, right, bias, weight, shift))
        product = a @ b
        return [product, product + c, a.softmax(-1), torch.nn.functional.layer_norm(a, [SIZE], w, s)]

    return Workload(step, expect)


if __name__ == "__main__":
    need_gpu()
    run_program(make_workload)
