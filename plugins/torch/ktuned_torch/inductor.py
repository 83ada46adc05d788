"""``torch.compile``, and what of its work can be kept: Inductor's code, in torch's own cache artifacts.

They are made and read by ``torch.compiler.save_cache_artifacts`` and ``load_cache_artifacts`` (torch 2.7 and later),
so an application can take them too. Dynamo's trace is not among them: it is made again, in about a second, and
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
    """Return ``torch.compile(function, **options)``, with nothing left of what this process compiled before.

    Dynamo stops compiling a function of which it holds eight versions, and runs it eagerly instead; each config is
    a version.

    Raises:
        TypeError, RuntimeError: ``torch.compile`` does not know an option.
    """
    import torch
    import torch._inductor.config

    if "TORCHINDUCTOR_COMPILE_THREADS" not in os.environ:
        # Its pool of processes would live on beside the timing, and take cores that are others' lanes.
        torch._inductor.config.compile_threads = 1
    torch.compiler.reset()
    _let_torch_come_first()
    return torch.compile(function, **options)


def times_candidates(options: Mapping[str, Any]) -> bool:
    """Tell whether Inductor is to choose by measuring, which only a lane does undisturbed."""
    wanted = {name.replace("-", "_") for name, value in dict(options.get("options") or {}).items() if value}
    return str(options.get("mode")).startswith("max-autotune") or any(
        name.startswith(("max_autotune", "coordinate_descent_tuning")) for name in wanted
    )


def code_of(function: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes:
    """Call a compiled function once and return the code that this made, as bytes for :func:`provide`.

    Empty when the compile backend keeps none. The code is for as many threads as a lane has: Inductor writes their
    number into it, and compile workers are kept to the cores that lanes leave them.
    """
    import torch
    from torch.compiler._cache import CacheArtifactManager

    torch.set_num_threads(_threads())
    # torch collects what the whole process made; this keeps each unit's apart.
    with CacheArtifactManager.with_fresh_cache():
        function(*arguments)
        saved = torch.compiler.save_cache_artifacts()
    return saved[0] if saved is not None and saved[1].inductor_artifacts else b""


def provide(code: bytes) -> None:
    """Put code that :func:`code_of` returned where the next compile in this process finds it."""
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
    """Return how many threads torch takes in a process that may use every CPU.

    torch alone knows: by its build it counts cores or hardware threads, and obeys several variables.
    """
    code = "import os; os.sched_setaffinity(0, range(os.cpu_count())); import torch; print(torch.get_num_threads())"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(said.stdout)


def _let_torch_come_first() -> None:
    """Put modules that imported torch behind torch's own in ``sys.modules``.

    The keys of Inductor's cache are hashes of pickles. In them a memory format, ``torch.contiguous_format``, belongs to
    the first module there in which ``torch`` is a name: without this to whichever kernel file imported torch first,
    and what one process keeps would not be found in the next.
    """
    import torch

    for name, module in list(sys.modules.items()):
        knows_torch = getattr(module, "__dict__", {}).get("torch") is torch
        if knows_torch and name.startswith("torch."):
            return
        if knows_torch and name != "__main__":
            sys.modules[name] = sys.modules.pop(name)
