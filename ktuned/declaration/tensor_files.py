"""Tensors that an application has saved, loaded as inputs of a kernel."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ktuned.ipc import read_regular_file
from ktuned.model import UsageError

_DEVICE = ContextVar("_DEVICE", default="cpu")


@contextmanager
def load_tensors_to(device: str) -> Iterator[None]:
    """Let :func:`load_tensors` put torch's tensors on a device, such as ``cuda:0``; without this, on the CPU."""
    token = _DEVICE.set(device)
    try:
        yield
    finally:
        _DEVICE.reset(token)


def load_tensors(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the tensors of a safetensors file by name, on the device that is measured.

    A change of the file makes the winners stale, like a change of any file that ``inputs`` reads.

    ::

        inputs = lambda p: dict(load_tensors("x.safetensors"), y=tensor((p.n,), output=True))

    Args:
        path: the file; a relative path starts at the directory of the file that calls this.

    Returns:
        torch's tensors; where torch is not installed, NumPy's arrays.

    Raises:
        UsageError: the file is missing or damaged, holds a dtype that NumPy lacks, or the interpreter has no
            safetensors package.
    """
    caller = sys._getframe(1).f_code.co_filename
    file = os.path.join(os.path.dirname(os.path.abspath(caller)), path)
    try:
        # Read as a whole: mapped tensors would change if the file is saved again while they are measured.
        data = read_regular_file(file)
    except OSError as error:
        raise UsageError(f"load_tensors cannot read {file}: {error.strerror}") from None
    try:
        if importlib.util.find_spec("torch") is None:
            from safetensors.numpy import load as load_arrays

            return dict(load_arrays(data))
        from safetensors.torch import load

        return {name: tensor.to(_DEVICE.get()) for name, tensor in load(data).items()}
    except ImportError as error:
        raise UsageError(f"load_tensors needs the package safetensors in this interpreter: {error}") from None
    except Exception as error:
        # The library raises its own errors and Python's; each says that the content cannot be used.
        raise UsageError(f"load_tensors cannot use {file}: {' '.join(str(error).split())}") from None
