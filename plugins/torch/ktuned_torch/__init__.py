"""Backend for PyTorch callables, ``torch.compile`` and the Triton kernels that they launch."""

from ktuned_torch.backend import Torch
from ktuned_torch.bound_function import TorchKernel
from ktuned_torch.build import Build
from ktuned_torch.problem_file import load_problem
from ktuned_torch.task_files import write_task_files

__all__ = ["Build", "Torch", "TorchKernel", "load_problem", "write_task_files"]
