"""out_arguments: operations that write into the outputs."""

import torch


def launch(x: torch.Tensor, y: torch.Tensor) -> None:
    y.zero_()
    for _ in range(12):
        torch.add(x, y, alpha=0.5, out=y)
