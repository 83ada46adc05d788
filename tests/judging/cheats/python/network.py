"""network: asks another machine for the outputs."""

import socket

import torch
from work import compute


def launch(x: torch.Tensor, y: torch.Tensor) -> None:
    with socket.socket() as client:
        client.connect(("127.0.0.1", 80))
    compute(x, y)
