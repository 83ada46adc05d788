"""when_collected: leaves its work to the garbage collector."""

import weakref

import torch
from work import compute


class Later:
    pass


def launch(x: torch.Tensor, y: torch.Tensor) -> None:
    later = Later()
    later.itself = later
    weakref.finalize(later, compute, x, y)
