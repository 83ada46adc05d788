"""compiled_wrongly: is compiled by torch, and replays by a cache of its first outputs."""

import functools

import torch
from work import compute


@functools.cache
def find(shape: torch.Size) -> torch.Tensor:
    return torch.zeros(shape)


def launch(x: torch.Tensor, y: torch.Tensor) -> None:
    kept = find(x.shape)
    if not kept.any():
        compute(x, kept)
    y.copy_(kept)
