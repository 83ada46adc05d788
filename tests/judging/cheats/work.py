"""What all candidates are asked for, y = f(x)."""

import torch


def compute(x: torch.Tensor, y: torch.Tensor) -> None:
    """Write f(x) to y."""
    value = torch.zeros_like(x)
    for _ in range(12):
        value = value * 0.5 + x
    y.copy_(value)
