"""Tensor libraries that a worker can measure with: torch, or NumPy on a CPU where torch is not installed.

All code that measures handles tensors through a :data:`TensorLibrary`. :func:`choose_library` chooses the library that
makes a problem's tensors. :func:`find_library` finds that of a given tensor, because a kernel file's own code may
return tensors of either.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from ktuned.checking.numpy_tensors import NumPyTensors
from ktuned.checking.torch_tensors import TorchTensors
from ktuned.model import Device

TORCH = TorchTensors()
NUMPY = NumPyTensors()

TensorLibrary = TorchTensors | NumPyTensors
"""The tensor operations that measuring needs; :class:`~ktuned.checking.numpy_tensors.NumPyTensors` explains each."""


def choose_library(device: Device) -> TensorLibrary:
    """Return the library that makes a device's tensors: torch if it is installed, and always for a GPU."""
    if device.kind == "cpu" and importlib.util.find_spec("torch") is None:
        return NUMPY
    return TORCH


def find_library(tensor: Any) -> TensorLibrary:
    """Return the library that a tensor belongs to."""
    return NUMPY if type(tensor).__module__ == "numpy" else TORCH


def is_unwritten(tensor: Any) -> bool:
    """Return whether a poisoned tensor still holds nothing but the poison; false if it has no elements."""
    still = find_library(tensor).find_unwritten(tensor)
    return bool(len(tensor.shape) == 0 or all(tensor.shape)) and bool(still.all())
