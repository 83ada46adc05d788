"""collector_off: no garbage collection while it works."""

import gc

import torch
from work import compute


def launch(x: torch.Tensor, y: torch.Tensor) -> None:
    gc.disable()
    try:
        compute(x, y)
    finally:
        gc.enable()
