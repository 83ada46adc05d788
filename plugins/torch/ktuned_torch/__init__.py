"""Backend for PyTorch callables, ``torch.compile`` and the Triton kernels that they launch."""

from ktuned_torch.backend import Build, Torch
from ktuned_torch.bound_function import TorchKernel

__all__ = ["Build", "Torch", "TorchKernel"]
