"""Inputs and reference of the fake backend's kernels, for tests that need tensors.

Kernels of other tests have no tensors, so that their workers need not import a tensor library.
"""

from collections.abc import Mapping

INPUTS = "lambda p: dict(x=tensor((p.n,)), y=tensor((p.n,), output=True))"
REFERENCE = "lambda x: dict(y=2 * x)"


def add_inputs(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options with ``inputs`` if a ``reference`` or a ``check`` needs them, else with ``check=None``."""
    is_judged = "reference" in options or "check" in options
    return {"inputs": INPUTS, **options} if is_judged else {"check": "None", **options}
