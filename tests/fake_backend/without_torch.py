"""Import of this module: with ``FAKE_TENSORS=numpy`` the process finds no torch, as where it is not installed.

To import torch takes 2 s of CPU, the largest cost of most tests with a worker that measures: in its place tensors are
NumPy's. For the fake backend, and for kernel files of other backends that have no need of torch.
"""

import os
import sys

if os.environ.get("FAKE_TENSORS") == "numpy":
    # How Python says that a module is not there. One that is imported already stays.
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
