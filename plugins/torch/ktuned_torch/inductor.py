"""``torch.compile``, with Inductor's code persisted as torch's cache artifacts.

``torch.compiler.save_cache_artifacts`` and ``load_cache_artifacts`` (torch 2.7 and later) write and read them, so an
application can use them, too. They do not contain Dynamo's trace: tracing again takes about a second, and the code is
then found by the graph's content.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ktuned.backends import Layout


def compile_function(function: Callable[..., Any], options: Mapping[str, Any]) -> Callable[..., Any]:
    """Return ``torch.compile(function, **options)``, after a reset of Dynamo.

    Dynamo stops compiling a function after eight versions, and runs it eagerly instead; each config is a version.

    Raises:
        TypeError, RuntimeError: ``torch.compile`` does not know an option.
    """
    import torch

    torch.compiler.reset()
    _move_torch_first()
    return torch.compile(function, **options)


def chooses_by_timing(options: Mapping[str, Any]) -> bool:
    """Return whether these options make Inductor choose by timing, which only a lane can do undisturbed."""
    wanted = {name.replace("-", "_") for name, value in dict(options.get("options") or {}).items() if value}
    return str(options.get("mode")).startswith("max-autotune") or any(
        name.startswith(("max_autotune", "coordinate_descent_tuning")) for name in wanted
    )


def collect_code(call: Callable[[], object]) -> bytes:
    """Make one call of a compiled function and return the generated code, as bytes for :func:`provide_code`.

    Empty if the compile backend persists none. Inductor writes the number of threads into the code, so it is set here
    to that of a lane; a compile worker itself is restricted to fewer cores.
    """
    import torch
    from torch.compiler._cache import CacheArtifactManager

    torch.set_num_threads(_count_threads())
    # Without this, torch would collect the artifacts of all units of this process.
    with CacheArtifactManager.with_fresh_cache():
        call()
        saved = torch.compiler.save_cache_artifacts()
    return saved[0] if saved is not None and saved[1].inductor_artifacts else b""


def provide_code(code: bytes) -> None:
    """Make code from :func:`collect_code` available to the next compile in this process."""
    import torch

    torch.compiler.load_cache_artifacts(code)


def make_zeros(layout: Layout) -> Any:
    """Return a tensor of zeros on the CPU with this dtype, shape and strides."""
    import torch

    dtype, shape, strides = layout
    length = 0 if 0 in shape else 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    return torch.zeros(length, dtype=getattr(torch, dtype)).as_strided(shape, strides)


@functools.cache
def _count_threads() -> int:
    """Return the number of threads that torch uses in a process that may use every CPU.

    A child process asks torch, which counts cores or hardware threads depending on its build, and reads several
    environment variables.
    """
    code = "import os; os.sched_setaffinity(0, range(os.cpu_count())); import torch; print(torch.get_num_threads())"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(child.stdout)


def _move_torch_first() -> None:
    """Move modules that imported torch behind torch's own in ``sys.modules``: Inductor's cache keys depend on it.

    The keys are hashes of pickles, and pickle says that a memory format (``torch.contiguous_format``) belongs to the
    first module that has the name ``torch`` in it. That would be the kernel file that imported torch first, and the
    next process would not find the code.
    """
    import torch

    for name, module in list(sys.modules.items()):
        knows_torch = getattr(module, "__dict__", {}).get("torch") is torch
        if knows_torch and name.startswith("torch."):
            return
        if knows_torch and name != "__main__":
            sys.modules[name] = sys.modules.pop(name)
