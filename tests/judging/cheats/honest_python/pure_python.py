"""pure_python: lists of numbers."""

import torch


def launch(x: torch.Tensor, y: torch.Tensor) -> None:
    y.copy_(torch.tensor([value * (2 - 2**-11) for value in x.tolist()]))
