"""A declared kernel: the arguments of ``@kernel``, and calls of the file's functions for a problem or a config.

Each call of user code is checked here. An error names the kernel, the argument of ``@kernel``, and the line of the
kernel file (:meth:`~ktuned.declaration.user_values.Site.make_failure`). A result of a wrong type is an error, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, Literal

from ktuned.declaration.declaration_faults import MAX_PROBLEMS, find_problems_fault
from ktuned.declaration.spaces import BoundSpace, Space
from ktuned.declaration.tensors import TensorSpec, find_layout, tensor
from ktuned.declaration.user_values import Site, UnknownKey, Values
from ktuned.declaration.work import DeclaredWork, compute_throughput
from ktuned.ipc import normalize_path
from ktuned.model import (
    Config,
    Plan,
    Problem,
    Scalar,
    Unsupported,
    apply_bucket_rules,
    canonical,
    listed,
)

if TYPE_CHECKING:
    from ktuned.backends import Build, Layout

DEFAULT_OUTPUTS = "default"
"""Given as ``reference``: the outputs of the default config are the expected ones."""

KernelFunction = Callable[[Any, Any], "Build"]
Inputs = Callable[[Any], Mapping[str, Any]]

Metric = Callable[[Any, float], float]
"""A figure of a measured config: a function of the problem and the time of a launch in s."""


def _only_declares_tensors(inputs: Inputs) -> bool:
    """Return whether a function surely makes no tensor itself: the only callable that it names is ``tensor``."""
    # Imported here, because only inspections need it.
    from dis import get_instructions

    code = getattr(inputs, "__code__", None)
    if code is None or any(isinstance(held, CodeType) for held in code.co_consts):
        return False
    steps = list(get_instructions(code))
    named = [inputs.__globals__.get(step.argval) for step in steps if step.opname == "LOAD_GLOBAL"]
    return (
        not code.co_freevars
        and all(step.opname != "IMPORT_NAME" for step in steps)
        and all(found is tensor or not (callable(found) or isinstance(found, ModuleType)) for found in named)
    )


def no_tensors(p: Any) -> Mapping[str, Any]:
    """Return the inputs of a kernel that takes no tensors."""
    # This function's name is a part of such kernels' digests.
    return {}


@dataclass(frozen=True, eq=False)
class Kernel:
    """A declared kernel. Calling it calls its function.

    The fields are the arguments of :func:`~ktuned.declaration.declaration.kernel`, and:

    Attributes:
        file: the kernel file that declares it.
        site: the place that errors name.
        reference, check: if both are given, both must pass; if neither is, nothing is checked. Without a declared
            default, ``"default"`` means the space's first config that runs.
        plan: strategy, seed, budgets and objective.
        given: names of the budgets that the file sets itself.
        has_exact_integers: false if the file gives a tolerance, which then holds for integers, too.
    """

    name: str
    function: KernelFunction
    file: Path
    site: Site
    backend: str
    space: Space
    inputs: Inputs
    sources: tuple[str, ...]
    problems: tuple[Problem, ...] | Callable[[], Iterable[Problem]]
    reference: Callable[..., Mapping[str, Any]] | Literal["default"] | None
    check: Callable[[Mapping[str, Any], Mapping[str, Any]], object] | None
    rtol: float
    atol: float
    max_mismatched_ratio: float
    default: Config | None
    specialize: tuple[str, ...] | None
    setup: tuple[str, ...] | Callable[[Mapping[str, Any]], object]
    timing: str
    plan: Plan
    prior: Callable[..., Any] | None = None
    cores: int | Callable[[Any, Any], int] | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    flops: DeclaredWork = None
    bytes: DeclaredWork = None
    given: tuple[str, ...] = ()
    depends: tuple[str, ...] = ()
    bucket: Mapping[str, Any] | None = None
    has_exact_integers: bool = True
    is_data: bool = False

    def __call__(self, p: Any, c: Any) -> Build:
        """Call the kernel function itself, without checks."""
        return self.function(p, c)

    @cached_property
    def source_paths(self) -> tuple[Path, ...]:
        """The sources' absolute paths; they are written relative to the kernel file."""
        return tuple(normalize_path(self.file.parent / source) for source in self.sources)

    @property
    def is_judged(self) -> bool:
        """False if nothing decides whether outputs are right: there is ``check=None`` and no reference."""
        return self.reference is not None or self.check is not None

    @property
    def expects_default_outputs(self) -> bool:
        """True if configs are compared with the outputs of the default config."""
        return self.reference == DEFAULT_OUTPUTS

    @property
    def has_tensors(self) -> bool:
        """False if the file gives no ``inputs``: the kernel takes no tensors."""
        return self.inputs is not no_tensors

    def list_problems(self) -> tuple[dict[str, Scalar], ...]:
        """Return the declared problems, calling ``problems`` if it is a callable.

        Raises:
            KernelFileError: the callable raised; or a problem is malformed, repeated, or lacks a key that another
                argument names.
        """
        return tuple(map(dict, self._evaluated_problems))

    @cached_property
    def _evaluated_problems(self) -> tuple[Problem, ...]:
        if not callable(self.problems):
            return self.problems
        with self.site.wrap_failures("problems()"):
            found = tuple(islice(self.problems(), MAX_PROBLEMS + 1))
        if fault := find_problems_fault(found, self.specialize, self.bucket_rules):
            raise self.site.make_error(fault)
        return found

    @property
    def bucket_rules(self) -> Mapping[str, Any]:
        """The rules of shape buckets by problem key."""
        rules = self.bucket or {}
        return {name: tuple(rule) if isinstance(rule, list) else rule for name, rule in rules.items()}

    def list_represented_problems(self) -> tuple[dict[str, Scalar], ...]:
        """Return the declared problems' representatives, each once.

        Raises:
            KernelFileError: as :meth:`list_problems`.
        """
        problems = self.list_problems()
        found = [apply_bucket_rules(self.bucket_rules, problem) for problem in problems]
        return tuple({canonical(chosen): chosen for chosen in found}.values())

    def bind_space(self, problem: Problem) -> BoundSpace:
        """Return the space for one problem; its errors name this kernel and its file."""
        return self.space.bind(problem, self.site)

    def iterate_default_configs(self, problem: Problem) -> Iterator[Config]:
        """Yield candidates for the default config of a problem: the first that runs is the default.

        If the file declares a default, it is the only candidate. Otherwise each config of the space is one.

        Raises:
            KernelFileError: the space holds no config for the problem.
        """
        bound = self.bind_space(problem)
        yield from [self.default] if self.default is not None and self.default in bound else bound

    def evaluate_inputs(self, problem: Problem) -> dict[str, Any]:
        """Call ``inputs`` and return its tensors by name: each a :class:`TensorSpec`, or a tensor that it made itself.

        Raises:
            KernelFileError: the function raised, returned no tensors, or not all those that ``setup`` names.
        """
        with self.site.wrap_failures("inputs(p)"):
            tensors: Any = self.inputs(Values(problem, "problem key"))
        if isinstance(tensors, Mapping) and not tensors and self.has_tensors:
            raise self.site.make_error("inputs(p) returned an empty dict; it must name at least one tensor")
        if not isinstance(tensors, Mapping):
            raise self.site.make_error(
                f"inputs(p) returned a value of type {type(tensors).__name__}, not a dict of tensors by name"
            )
        for name, value in tensors.items():
            if not isinstance(value, TensorSpec) and not (hasattr(value, "shape") and hasattr(value, "dtype")):
                raise self.site.make_error(
                    f"inputs(p): {name} is of type {type(value).__name__}, "
                    "not a tensor(...), a torch.Tensor or a numpy.ndarray"
                )
        for name in self.setup if isinstance(self.setup, tuple) else ():
            if name not in tensors:
                raise self.site.make_error(
                    f"setup names the tensor {name!r}, which inputs(p) does not make {listed(tensors)}"
                )
        return dict(tensors)

    def build(self, problem: Problem, config: Config) -> Build:
        """Call the kernel function for one problem and config.

        Raises:
            Unsupported: the function raised this, because the config cannot run here.
            KernelFileError: the function raised anything else, or returned no Build of the kernel's backend.
        """
        # Imported here, because it imports importlib.metadata: a quarter of this module's import time, which the
        # command line saves.
        from ktuned.backends import Build

        try:
            build: Any = self.function(Values(problem, "problem key"), Values(config, "knob"))
        except Unsupported:
            raise
        except Exception as error:
            raise self.site.make_failure(f"{self.name}(p, c)", error) from error
        if build is None:
            raise self.site.make_error("the kernel function returned nothing; end it with `return Build(…)`")
        if not isinstance(build, Build):
            raise self.site.make_error(
                f"the kernel function returned a value of type {type(build).__name__}, "
                f"not a Build of the backend {self.backend!r}"
            )
        if build.backend != self.backend:
            raise self.site.make_error(
                f"the kernel function returned a Build of the backend {build.backend!r}, but backend={self.backend!r}"
            )
        if not self.has_tensors:
            return build.without_tensors()
        return build.given(lambda: self._describe_tensors(problem))

    def check_function(self, problem: Problem, config: Config) -> None:
        """Call the kernel function once, so that a misspelt name is reported once and not for each config.

        Errors that depend on the config, such as a value that it refuses, are left to the trials.

        Raises:
            KernelFileError: the function asks for a knob, a problem key, a name or an argument that does not exist, or
                its Build names a tensor that ``inputs`` does not make.
        """
        try:
            build = self.function(Values(problem, "problem key"), Values(config, "knob"))
        except Exception as error:
            is_misspelt = isinstance(error, UnknownKey | NameError) or (
                isinstance(error, TypeError) and "unexpected keyword argument" in str(error)
            )
            if is_misspelt:
                raise self.site.make_failure(f"{self.name}(p, c)", error) from error
            return
        # Tensors that a kernel file makes itself are left to the job, because making them may take long.
        if self.has_tensors and _only_declares_tensors(self.inputs):
            from ktuned.backends import unknown_tensor

            made = self.evaluate_inputs(problem)
            for name in getattr(build, "tensors", ()):
                if name not in made:
                    raise self.site.make_error(unknown_tensor(name, made))

    def evaluate_cores(self, problem: Problem, config: Config) -> int | None:
        """Return how many cores a config uses on a CPU, or None if the file does not say.

        Raises:
            KernelFileError: ``cores`` raised, or did not give a positive int.
        """
        cores = self.cores
        if callable(cores):
            with self.site.wrap_failures("cores(p, c)"):
                cores = cores(Values(problem, "problem key"), Values(config, "knob"))
            if type(cores) is not int or cores < 1:
                raise self.site.make_error(f"cores(p, c) returned {cores!r}, not a positive int")
        return cores

    @property
    def judges(self) -> bool:
        """True if code of the kernel file takes part in measuring, beyond making inputs and expected outputs."""
        return bool(self.check or callable(self.setup) or self.metrics)

    def evaluate_metrics(self, problem: Problem, latency_us: float) -> dict[str, float]:
        """Return the metrics of a measured config, by name. A value that is not finite is left out.

        Raises:
            KernelFileError: a metric raised, or returned something else than a number.
        """
        latency_s = latency_us / 1e6
        with self.site.wrap_failures("flops(p) or bytes(p)"):
            flops, bytes_moved = self.evaluate_work(problem)
            found = compute_throughput(flops, bytes_moved, latency_us)
        for name, metric in self.metrics.items():
            with self.site.wrap_failures(f"the metric {name}(p, t)"):
                value = float(metric(Values(problem, "problem key"), latency_s))
            if math.isfinite(value):
                found[name] = value
        return found

    def evaluate_work(self, problem: Problem) -> tuple[Any, ...]:
        """Return the declared ``flops`` and ``bytes`` of a launch, each a number, a dict by precision, or None."""
        values = Values(problem, "problem key")
        return tuple(work(values) if callable(work) else work for work in (self.flops, self.bytes))

    def _describe_tensors(self, problem: Problem) -> dict[str, Layout]:
        text = canonical(problem)
        if text not in self._known_layouts:
            specs = self.evaluate_inputs(problem)
            layouts = {name: find_layout(value) for name, value in specs.items()}
            self._known_layouts[text] = {name: layout for name, layout in layouts.items() if layout is not None}
        return self._known_layouts[text]

    @cached_property
    def _known_layouts(self) -> dict[str, dict[str, Layout]]:
        # Cached by problem, so that a function that makes tensors itself is not called again for each config.
        return {}
