"""eager: a few operations."""

import torch
from work import compute


def launch(x: torch.Tensor, y: torch.Tensor) -> None:
    compute(x, y)
