"""A layer of flash-linear-attention, as a server runs it: with `python infer.py`, or `ktuned run python infer.py`."""

import time

import torch
from fla.layers import GatedDeltaNet

start = time.perf_counter()
torch.manual_seed(0)
layer = GatedDeltaNet(hidden_size=1024, head_dim=128, num_heads=6).cuda().bfloat16()
x = torch.randn(4, 2048, 1024, device="cuda", dtype=torch.bfloat16)
for step in range(201):
    with torch.no_grad():
        layer(x)
    if step % 50 == 0:
        torch.cuda.synchronize()
        now = time.perf_counter()
        print(
            f"step {step:3}: {now - start:6.2f} s, {(now - start) / (50 if step else 1) * 1e3:8.1f} ms a step",
            flush=True,
        )
        start = time.perf_counter()
