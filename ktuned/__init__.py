"""ktuned: a per-user daemon that owns the tuning of kernels. This module is what kernel files import.

::

    from ktuned import kernel, space, tensor

It imports the standard library alone; torch and backends come in only where something runs.
"""

from __future__ import annotations

from ktuned.errors import Unsupported
from ktuned.spec.kernel import kernel
from ktuned.spec.space import space
from ktuned.spec.tensors import tensor

__version__ = "0.1.0"

__all__ = ["Unsupported", "__version__", "kernel", "space", "tensor"]
