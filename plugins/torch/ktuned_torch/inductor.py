"""``torch.compile``, with Inductor's code persisted in torch's cache artifacts.

``torch.compiler.save_cache_artifacts`` and ``load_cache_artifacts`` (torch 2.7 and later) write and read them,
so an application can use them too. Dynamo's trace is not among them: it takes about a second to make again, and
finds its code by the graph's content.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ktuned.backends import Layout


def compiled(function: Callable[..., Any], options: Mapping[str, Any]) -> Callable[..., Any]:
    """Return ``torch.compile(function, **options)``, after a reset of Dynamo.

    Dynamo stops compiling a function after eight versions, and runs it eagerly instead; each config is a version.

    Raises:
        TypeError, RuntimeError: ``torch.compile`` does not know an option.
    """
    import torch
    import torch._inductor.config

    if "TORCHINDUCTOR_COMPILE_THREADS" not in os.environ:
        # Its process pool would continue beside the timing, and use the cores of other lanes.
        torch._inductor.config.compile_threads = 1
    torch.compiler.reset()
    _let_torch_come_first()
    return torch.compile(function, **options)


def times_candidates(options: Mapping[str, Any]) -> bool:
    """Return whether Inductor will choose by measuring, which only a lane does undisturbed."""
    wanted = {name.replace("-", "_") for name, value in dict(options.get("options") or {}).items() if value}
    return str(options.get("mode")).startswith("max-autotune") or any(
        name.startswith(("max_autotune", "coordinate_descent_tuning")) for name in wanted
    )


def code_of(call: Callable[[], object]) -> bytes:
    """Make one call of a compiled function and return the generated code, as bytes for :func:`provide`.

    Empty if the compile backend persists none. The code is for the number of threads of a lane: Inductor writes it
    into the code, and compile workers are restricted to other cores.
    """
    import torch
    from torch.compiler._cache import CacheArtifactManager

    torch.set_num_threads(_threads())
    # torch collects the artifacts of the whole process; this separates those of each unit.
    with CacheArtifactManager.with_fresh_cache():
        call()
        saved = torch.compiler.save_cache_artifacts()
    return saved[0] if saved is not None and saved[1].inductor_artifacts else b""


def provide(code: bytes) -> None:
    """Make code from :func:`code_of` available to the next compile in this process."""
    import torch

    torch.compiler.load_cache_artifacts(code)


def zeros(layout: Layout) -> Any:
    """Return a tensor of zeros on the CPU with this dtype, shape and strides."""
    import torch

    dtype, shape, strides = layout
    length = 0 if 0 in shape else 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    return torch.zeros(length, dtype=getattr(torch, dtype)).as_strided(shape, strides)


@functools.cache
def _threads() -> int:
    """Return the number of threads that torch uses in a process that may use every CPU.

    A child process asks torch: depending on its build it counts cores or hardware threads, and reads several variables.
    """
    code = "import os; os.sched_setaffinity(0, range(os.cpu_count())); import torch; print(torch.get_num_threads())"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(said.stdout)


def _let_torch_come_first() -> None:
    """Put modules that imported torch behind torch's own in ``sys.modules``: Inductor's cache depends on the order.

    Its keys are hashes of pickles. In them a memory format, ``torch.contiguous_format``, belongs to
    the first module there that has the name ``torch``. Without this it would be the kernel file that imported torch
    first, and the next process would not find the code.
    """
    import torch

    for name, module in list(sys.modules.items()):
        knows_torch = getattr(module, "__dict__", {}).get("torch") is torch
        if knows_torch and name.startswith("torch."):
            return
        if knows_torch and name != "__main__":
            sys.modules[name] = sys.modules.pop(name)
