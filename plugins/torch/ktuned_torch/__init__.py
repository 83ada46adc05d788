"""Backend for PyTorch callables, ``torch.compile`` and the Triton kernels that they launch."""

from ktuned_torch.backend import Torch
from ktuned_torch.bound_function import TorchKernel
from ktuned_torch.build import Build

__all__ = ["Build", "Torch", "TorchKernel"]
