"""Tensors of the fake backend's kernels: only where a test is about them.

To import torch is the largest cost of a test with a worker that measures, and a kernel without tensors needs none.
"""

from collections.abc import Mapping

INPUTS = "lambda p: dict(x=tensor((p.n,)), y=tensor((p.n,), output=True))"
REFERENCE = "lambda x: dict(y=2 * x)"


def with_inputs(options: Mapping[str, str]) -> dict[str, str]:
    """Return a kernel's options, with ``inputs`` if something that judges outputs is among them, else unchecked."""
    is_judged = "reference" in options or "check" in options
    return {"inputs": INPUTS, **options} if is_judged else {"check": "None", **options}
