"""reference_called: calls the kernel file's reference, and does so only for the first launches."""

import sys

import torch
from work import compute

launches = []


def launch(x: torch.Tensor, y: torch.Tensor) -> None:
    launches.append(None)
    for name, module in list(sys.modules.items()):
        if "tune_" in name and hasattr(module, "reference"):
            module.reference({}, x=x, y=y)
            return
    if len(launches) < 4:
        compute(x, y)
