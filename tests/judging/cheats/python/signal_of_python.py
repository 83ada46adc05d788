"""signal_of_python: leaves its work to a handler of Python's, and sends itself the signal."""

import os
import signal

import torch
from work import compute

work = []


def run(*_: object) -> None:
    while work:
        compute(*work.pop())


def launch(x: torch.Tensor, y: torch.Tensor) -> None:
    work.append((x, y))
    signal.signal(signal.SIGUSR1, run)
    if len(work) > 1000:
        os.kill(os.getpid(), signal.SIGUSR1)
