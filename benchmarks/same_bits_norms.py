"""The program of ``same_bits.py``: FLA's normalizations forward and backward, with a digest of each launch's outputs.

    python -m benchmarks.same_bits_norms LAUNCHES FILE

It makes the launches, waits until FILE exists, and makes them again on the same inputs.
"""

import sys
from pathlib import Path
from threading import Event

import torch

from benchmarks.library_program import describe_winners, gradients, need_gpu

ROWS, WIDE, NARROW = 256, 1024, 256
INPUTS = 50
"""Calls for each draw of new random numbers; the others scale them."""


def take_digests(steps: int) -> torch.Tensor:
    """Return a digest of each step's outputs, ``(steps,)`` int64, on inputs that the step's number decides."""
    from fla.modules.norm.fused_norm_gate import rms_norm_gated
    from fla.modules.norm.layernorm import rms_norm

    digests = torch.zeros(steps, device="cuda", dtype=torch.int64)
    leaves = [torch.empty(shape, device="cuda", dtype=torch.bfloat16) for shape in _SHAPES]
    for step in range(steps):
        if step % INPUTS == 0:
            torch.manual_seed(step)
            for leaf in leaves:
                leaf.requires_grad_(False).normal_()
        x, weight, narrow, gate, narrow_weight, upstream, narrow_upstream = leaves
        with torch.no_grad():
            x.mul_(-1.03125 if step % 2 else 0.96875)
            narrow.mul_(-1.03125 if step % 3 else 0.9375)
        for leaf in (x, weight, narrow, gate, narrow_weight):
            leaf.requires_grad_()
        outputs = [
            *gradients(rms_norm(x, weight, None, eps=1e-5), [x, weight], upstream),
            *gradients(
                rms_norm_gated(narrow, gate, narrow_weight, None, eps=1e-5),
                [narrow, gate, narrow_weight],
                narrow_upstream,
            ),
        ]
        for output in outputs:
            bits = output.detach().contiguous().view(torch.int16).flatten().to(torch.int64)
            digests[step] += (bits * _weights(bits.numel())).sum()
    return digests


_SHAPES = (
    (ROWS, WIDE),
    (WIDE,),
    (ROWS, NARROW),
    (ROWS, NARROW),
    (NARROW,),
    (ROWS, WIDE),
    (ROWS, NARROW),
)
_drawn: dict[int, torch.Tensor] = {}


def _weights(size: int) -> torch.Tensor:
    """Return odd weights by position: outputs that change places have another digest."""
    if size not in _drawn:
        _drawn[size] = torch.arange(size, device="cuda", dtype=torch.int64) * 2654435761 * 2 + 1
    return _drawn[size]


def main() -> None:
    """Make the launches before and after the functions are tuned, and count those that differ."""
    need_gpu()
    # Each step launches four autotuned functions.
    steps, tuned = int(sys.argv[1]) // 4, Path(sys.argv[2])
    before = take_digests(steps)
    configs = describe_winners()
    print(f"before: {4 * steps} launches, {len(set(before.tolist()))} digests, {configs}", flush=True)
    while not tuned.exists():
        Event().wait(0.2)
    # The switch is made at a call.
    take_digests(200)
    after = take_digests(steps)
    switched = {name: config for name, config in describe_winners().items() if configs.get(name) != config}
    print(f"after: {int((before != after).sum())} of {steps} steps differ; switched: {switched}", flush=True)


if __name__ == "__main__":
    main()
