"""A program that calls autotuned functions and ends in a hurry; the CPU stands in for a GPU, and launches nothing.

``application.py SIZES [exit|end|loop] [FUNCTION]`` calls a function of ``kernels.py`` once for each size.
"""

import os
import sys
import threading
from typing import Any

import torch
import triton
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from ktuned.dropin import Policy
from ktuned_triton.compiler import _AbsentDriver
from tests.plugins.triton_app import kernels

launched: list[int] = []
lower = JITFunction.run


def run(self: Any, *args: Any, **kwargs: Any) -> None:
    """Launch nothing; the copy of a function that is lowered here has a hook of its own."""
    if "_call_hook" in vars(self):
        lower(self, *args, **kwargs)
    elif not kwargs["warmup"]:
        launched.append(kwargs["BLOCK"])


def main() -> None:
    """Call the function with each size, and end as it is said."""
    JITFunction.run = run
    driver.set_active(_AbsentDriver(90))
    how, name = (sys.argv[2:] + ["end", "scale"][len(sys.argv) - 2 :])[:2]
    function = getattr(kernels, name)
    # Nothing can be measured here.
    function.__dict__["_ktuned_policy"] = Policy(
        os.environ.get("KTUNED_RUN_MODE", "background"),
        takes_over=True,
        numerics=os.environ.get("KTUNED_RUN_NUMERICS", "tolerance"),
    )
    sizes = [int(size) for size in sys.argv[1].split(",")]
    for size in sizes:
        x = torch.ones(size)
        function[lambda meta, size=size: (triton.cdiv(size, meta["BLOCK"]),)](x, torch.empty_like(x), size, 2.0)
    print("called", *launched, flush=True)
    if how == "exit":
        os._exit(0)
    pause = threading.Event()
    while how == "loop":
        pause.wait(0.01)
        x = torch.ones(sizes[0])
        function[(1,)](x, torch.empty_like(x), sizes[0], 2.0)
        if launched[-1] == 256:
            print("winner", flush=True)
            return


main()
