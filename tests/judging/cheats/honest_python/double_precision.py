"""double_precision: another precision."""

import torch


def launch(x: torch.Tensor, y: torch.Tensor) -> None:
    y.copy_((x.double() * (2 - 2**-11)).float())
