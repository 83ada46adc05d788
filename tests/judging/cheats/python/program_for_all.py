"""program_for_all: leaves its work to a program that it starts."""

import subprocess
import sys

import torch


def launch(x: torch.Tensor, y: torch.Tensor) -> None:
    subprocess.Popen([sys.executable, "-c", "import torch"])
