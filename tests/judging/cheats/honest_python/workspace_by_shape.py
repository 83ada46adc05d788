"""workspace_by_shape: a workspace for each shape."""

import torch

spaces: dict[torch.Size, torch.Tensor] = {}


def launch(x: torch.Tensor, y: torch.Tensor) -> None:
    space = spaces.setdefault(x.shape, torch.empty_like(x))
    space.zero_()
    for _ in range(12):
        space.mul_(0.5).add_(x)
    y.copy_(space)
