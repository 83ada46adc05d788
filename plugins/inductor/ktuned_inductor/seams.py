"""All private names of Inductor that this plugin uses, and the installation of hooks into them.

All of them may change in any version of torch. So two checks come before a hook is installed: torch's version is known,
and each seam exists with the parameters that a hook passes on. One more comes before the first decision: the self-test
has passed with this build of torch and Triton (:mod:`~ktuned_inductor.self_test`). While a program runs, a hook that
raises switches all hooks off: Inductor then behaves as without ktuned, and the summary of ``ktuned run`` has one line
about it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from importlib import import_module
from typing import Any, Final, NamedTuple, TypeVar

Result = TypeVar("Result")

OLDEST, NEWEST = (2, 10), (2, 15)
"""The versions of torch whose seams were read."""

HEURISTICS: Final = "torch._inductor.runtime.triton_heuristics"


class Seam(NamedTuple):
    """A function of Inductor: its module, its name there, and the parameters that it must have, in this order."""

    module: str
    name: str
    parameters: tuple[str, ...]

    def find_owner(self) -> tuple[Any, str]:
        """Return the module or class that holds the function, and the function's name in it.

        Raises:
            ImportError, AttributeError: it is gone.
        """
        owner: Any = import_module(self.module)
        *parents, name = self.name.split(".")
        for parent in parents:
            owner = getattr(owner, parent)
        return owner, name


CHECK_CACHE = Seam(HEURISTICS, "check_autotune_cache", ("configs", "filename", "inductor_meta"))
LISTS: Final = tuple(
    Seam(HEURISTICS, name, ("size_hints", "triton_meta", "filename", "inductor_meta"))
    for name in ("pointwise", "reduction", "persistent_reduction")
)
"""The functions that list the configs of a generated kernel; generated code passes all arguments by name."""

LOAD_KERNEL = Seam("torch._inductor.async_compile", "_load_triton_kernel_from_source", ("kernel_name", "source_code"))
COMPILE_KERNEL = Seam(
    "torch._inductor.async_compile", "AsyncCompile.triton", ("self", "kernel_name", "source_code", "device_str")
)
DEFINE_KERNEL = Seam(
    "torch._inductor.codegen.triton",
    "TritonScheduling.define_kernel",
    ("self", "src_code", "node_schedule", "kernel"),
)
PRECOMPILE = Seam(HEURISTICS, "CachingAutotuner.precompile", ("self", "warm_cache_only"))
RUN = Seam(HEURISTICS, "CachingAutotuner.run", ("self", "args", "stream", "benchmark_run"))
GRID = Seam(HEURISTICS, "GridExpr.from_meta", ("inductor_meta", "cfg"))
SAVE_GRAPH = Seam("torch._inductor.codecache", "FxGraphCache._save_graph", ("key", "compiled_graph", "example_inputs"))
GRAPH_KEY = Seam("torch._inductor.codecache", "FxGraphHashDetails.__init__", ("self", "gm", "example_inputs"))
CHOICES = Seam(
    "torch._inductor.choices",
    "InductorChoices._finalize_template_configs",
    ("self", "template_choices", "kernel_inputs", "templates", "op_name"),
)
CONVOLUTIONS = Seam("torch._inductor.choices", "InductorChoices.get_conv_configs", ("self", "device_type"))
SELECT = Seam(
    "torch._inductor.select_algorithm",
    "AlgorithmSelectorCache.__call__",
    ("self", "name", "choices", "input_nodes", "layout"),
)

IN_WORKERS: Final = (CHECK_CACHE, *LISTS)
"""The seams that are hooked where kernels are loaded: in compile workers, too."""

SEAMS: Final = (
    *IN_WORKERS,
    LOAD_KERNEL,
    COMPILE_KERNEL,
    DEFINE_KERNEL,
    PRECOMPILE,
    RUN,
    GRID,
    SAVE_GRAPH,
    GRAPH_KEY,
    CHOICES,
    CONVOLUTIONS,
    SELECT,
)


def explain_difference(seams: Iterable[Seam] = SEAMS) -> str:
    """Return what is not as this plugin knows it: torch's version, or the first seam that differs; else empty."""
    import torch

    version = tuple(int(part) for part in str(torch.__version__).split(".")[:2])
    if not OLDEST <= version <= NEWEST:
        return f"torch {torch.__version__} is not one of the versions 2.{OLDEST[1]} to 2.{NEWEST[1]}"
    for seam in seams:
        try:
            owner, name = seam.find_owner()
            # An inherited method is another one.
            given = list(inspect.signature(getattr(vars(owner)[name], "__func__", vars(owner)[name])).parameters)
        except (ImportError, AttributeError, KeyError):
            return f"it has no {seam.module}.{seam.name}"
        found = iter(given)
        if not all(parameter in found for parameter in seam.parameters):
            return f"its {seam.name} has the parameters {', '.join(given)}"
    return ""


class LeftAlone(Exception):
    """Inductor is left as it is; the message is the reason."""


class Switch:
    """Whether the hooks of this process are on; the first error in a hook switches all of them off.

    Attributes:
        reason: why they are off; empty while they are on.
    """

    def __init__(self, report: Callable[[str], None]) -> None:
        self.reason = ""
        self._report = report

    def attempt(self, otherwise: Result, function: Callable[..., Result], *args: Any) -> Result:
        """Return what a function of ours returns; if it raises, or did before, return ``otherwise``."""
        if self.reason:
            return otherwise
        try:
            return function(*args)
        except Exception as error:
            message = str(error).partition("\n")[0]
            self.reason = message if isinstance(error, LeftAlone) else f"{type(error).__name__}: {message}"
            self._report(self.reason)
            return otherwise


def hook_seam(seam: Seam, make_hook: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[[], None]:
    """Replace a function by the one that ``make_hook`` makes around it; return what puts the original back."""
    owner, name = seam.find_owner()
    kept = vars(owner)[name]
    original = getattr(owner, name)
    hook = wraps(original)(make_hook(original))
    setattr(owner, name, staticmethod(hook) if isinstance(kept, staticmethod) else hook)
    return lambda: setattr(owner, name, kept)
