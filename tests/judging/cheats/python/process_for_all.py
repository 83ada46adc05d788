"""process_for_all: leaves its work to a process."""

import multiprocessing

import torch
from work import compute


def launch(x: torch.Tensor, y: torch.Tensor) -> None:
    multiprocessing.get_context("fork").Process(target=compute, args=(x, y), daemon=True).start()
