"""``@kernel``: the declaration of a kernel in its file."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from ktuned.ipc import lexical
from ktuned.model import (
    LATENCY,
    Config,
    KernelFileError,
    Objective,
    Plan,
    Problem,
    Scalar,
    Unsupported,
    bucketed,
    canonical,
    listed,
)
from ktuned.spec.faults import MAX_PROBLEMS, UNSET, check_fault, fault_of, problems_fault, unknown_fault, weighted
from ktuned.spec.spaces import BoundSpace, Space
from ktuned.spec.tensors import TensorSpec, layout
from ktuned.spec.values import Site, Values, mapping_fault
from ktuned.spec.work import Declared, throughput

if TYPE_CHECKING:
    from ktuned.backends import Build, Layout

DEFAULT_RTOL = 1e-4
DEFAULT_ATOL = 1e-4
"""Wide enough for float32 sums in another order; half-precision kernels state their own."""

DEFAULT_OUTPUTS: Final = "default"
"""As ``reference``: the outputs of the default config are the expected ones."""

KernelFunction = Callable[[Any, Any], "Build"]
Inputs = Callable[[Any], Mapping[str, Any]]
Weighted = tuple[Problem, float]
"""A problem with its weight in a set."""

Metric = Callable[[Any, float], float] | Callable[[Any, float, float], float]
"""A figure of a measured config, from the problem, the time of a launch in seconds and, if it wants that, its energy in
joules."""


def no_tensors(p: Any) -> Mapping[str, Any]:
    """Return the inputs of a kernel that takes no tensors."""
    return {}


@dataclass(frozen=True, eq=False)
class Kernel:
    """A declared kernel. Calling it calls its function.

    ``file`` is the kernel file that declares it, ``sources`` stand as written (see :attr:`source_paths`).
    ``reference`` is called with the input tensors by name and returns the outputs by name, or is ``"default"``: the
    outputs of the default config, or of the space's first one, are expected; ``check`` is called as ``check(inputs,
    outputs)`` and raises or returns a bool; where both are given both must pass, and where neither is, nothing is
    checked. ``setup`` names the tensors to restore before each run, or is called with the inputs. ``cores`` is how
    many a config uses on a CPU. ``metrics`` are further figures by their names, ``flops`` and ``bytes`` the work of a
    launch. ``given`` names the budgets that the file sets itself. ``depends`` are patterns of files that are read
    where it cannot be observed.
    """

    name: str
    function: KernelFunction
    file: Path
    site: Site
    backend: str
    space: Space
    inputs: Inputs
    sources: tuple[str, ...]
    problems: tuple[Problem | Weighted, ...] | Callable[[], Iterable[Problem | Weighted]]
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
    flops: Declared = None
    bytes: Declared = None
    given: tuple[str, ...] = ()
    depends: tuple[str, ...] = ()
    bucket: Mapping[str, Any] | Callable[[Any], Mapping[str, Any]] | None = None
    best_for: str = "each"

    def __call__(self, p: Any, c: Any) -> Build:
        """Call the kernel function as it is."""
        return self.function(p, c)

    @cached_property
    def source_paths(self) -> tuple[Path, ...]:
        """The sources' absolute paths; they are written relative to the kernel file."""
        return tuple(lexical(self.file.parent / source) for source in self.sources)

    @property
    def is_judged(self) -> bool:
        """False if nothing decides whether outputs are right: ``check=None``, and no reference."""
        return self.reference is not None or self.check is not None

    @property
    def expects_default_outputs(self) -> bool:
        """True if configs are compared with the outputs of the default config."""
        return self.reference == DEFAULT_OUTPUTS

    @property
    def has_tensors(self) -> bool:
        """False if the file gives no ``inputs``: the kernel takes no tensors."""
        return self.inputs is not no_tensors

    def problem_list(self) -> tuple[dict[str, Scalar], ...]:
        """Return the declared problems, calling ``problems`` if it is a callable.

        Raises:
            KernelFileError: the callable raised, a problem is malformed or there twice, or lacks a specialised key.
        """
        return tuple(dict(problem) for problem, _ in self._weighted_problems)

    @cached_property
    def _weighted_problems(self) -> tuple[tuple[Problem, float], ...]:
        if not callable(self.problems):
            return tuple(map(weighted, self.problems))
        try:
            found = tuple(islice(self.problems(), MAX_PROBLEMS + 1))
        except Exception as error:
            raise self.site.failure("problems()", error) from error
        if fault := problems_fault(found, self.specialize):
            raise self.site.error(fault)
        return tuple(map(weighted, found))

    def weights_of(self, problems: Iterable[Problem]) -> tuple[float, ...]:
        """Return the weights of representatives: the sum of what their declared problems carry."""
        total: dict[str, float] = {}
        for problem, weight in self._weighted_problems:
            text = canonical(self.represent(problem))
            total[text] = total.get(text, 0.0) + weight
        return tuple(total[canonical(problem)] for problem in problems)

    @property
    def bucket_rules(self) -> Mapping[str, Any]:
        """The rules of shape buckets by key; a function of the whole problem stands alone, by ``*``."""
        if callable(self.bucket):
            return {"*": self.bucket}
        rules = self.bucket or {}
        return {name: tuple(rule) if isinstance(rule, list) else rule for name, rule in rules.items()}

    def represent(self, problem: Problem) -> dict[str, Scalar]:
        """Return the problem that stands for a problem's bucket.

        Raises:
            KernelFileError: a function raised, returned no problem, or gives its own results another bucket.
        """
        once = self._represented(problem)
        again = self._represented(once)
        if once != again:
            raise self.site.error(
                f"bucket maps {canonical(problem)} to {canonical(once)}, and that to {canonical(again)}",
                hint="a problem that stands for a bucket must stand for itself",
            )
        return once

    def _represented(self, problem: Problem) -> dict[str, Scalar]:
        rules = self.bucket_rules
        plain = {name: rule for name, rule in rules.items() if not callable(rule)}
        found: dict[str, Any] = bucketed(plain, problem)
        for name, rule in rules.items():
            if not callable(rule):
                continue
            try:
                changed = dict(rule(Values(problem, "problem key"))) if name == "*" else {name: rule(problem[name])}
            except Exception as error:
                raise self.site.failure("bucket", error) from error
            found |= changed
        strange = [key for key in found if key not in problem]
        if strange or mapping_fault(found, "bucket"):
            raise self.site.error(f"bucket gives {found!r}, which is no problem with the keys {', '.join(problem)}")
        return found

    def represented_problems(self) -> tuple[dict[str, Scalar], ...]:
        """Return the declared problems' representatives, each once.

        Raises:
            KernelFileError: as :meth:`problem_list` and :meth:`represent`.
        """
        problems = self.problem_list()
        if not self.bucket_rules:
            return problems
        found = {canonical(chosen): chosen for chosen in map(self.represent, problems)}
        return tuple(found.values())

    def bound_space(self, problem: Problem) -> BoundSpace:
        """Return the space for one problem; its errors name this kernel and its file."""
        return self.space.bind(problem, self.site)

    def default_config(self, problem: Problem) -> Config:
        """Return the default config of a problem: the declared one, else the first of the problem's space.

        Raises:
            KernelFileError: the space holds no config for the problem.
        """
        bound = self.bound_space(problem)
        return self.default if self.default is not None and self.default in bound else next(iter(bound))

    def input_specs(self, problem: Problem) -> dict[str, Any]:
        """Call ``inputs`` and return its tensors by name: :class:`TensorSpec`, or tensors that the function made.

        Raises:
            KernelFileError: the function raised, returned no tensors, or lacks one that ``setup`` names.
        """
        try:
            tensors: Any = self.inputs(Values(problem, "problem key"))
        except Exception as error:
            raise self.site.failure("inputs(p)", error) from error
        if isinstance(tensors, Mapping) and not tensors and self.has_tensors:
            raise self.site.error("inputs(p) returned an empty dict; it must name at least one tensor")
        if not isinstance(tensors, Mapping):
            raise self.site.error(
                f"inputs(p) returned a value of type {type(tensors).__name__}, not a dict of tensors by name"
            )
        for name, value in tensors.items():
            if not isinstance(value, TensorSpec) and not (hasattr(value, "shape") and hasattr(value, "dtype")):
                raise self.site.error(
                    f"inputs(p): {name} is of type {type(value).__name__}, "
                    "not a tensor(...), a torch.Tensor or a numpy.ndarray"
                )
        for name in self.setup if isinstance(self.setup, tuple) else ():
            if name not in tensors:
                raise self.site.error(
                    f"setup names the tensor {name!r}, which inputs(p) does not make {listed(tensors)}"
                )
        return dict(tensors)

    def build(self, problem: Problem, config: Config) -> Build:
        """Call the kernel function for one problem and config.

        Raises:
            Unsupported: the function said so.
            KernelFileError: the function raised anything else, or returned something else than its backend's Build.
        """
        # With it comes importlib.metadata, a quarter of this module's import, which the command line need not pay.
        from ktuned.backends import Build

        try:
            build: Any = self.function(Values(problem, "problem key"), Values(config, "knob"))
        except Unsupported:
            raise
        except Exception as error:
            raise self.site.failure(f"{self.name}(p, c)", error) from error
        if not isinstance(build, Build):
            raise self.site.error(
                f"the kernel function returned a value of type {type(build).__name__}, "
                f"not a Build of the backend {self.backend!r}"
            )
        if build.backend != self.backend:
            raise self.site.error(
                f"the kernel function returned a Build of the backend {build.backend!r}, but backend={self.backend!r}"
            )
        if not self.has_tensors:
            return build.without_tensors()
        return build.given(lambda: self._layouts(problem))

    def cores_of(self, problem: Problem, config: Config) -> int | None:
        """Return how many cores a config uses on a CPU, if the file says so.

        Raises:
            KernelFileError: ``cores`` raised, or gave something else than a positive int.
        """
        cores = self.cores
        if callable(cores):
            try:
                cores = cores(Values(problem, "problem key"), Values(config, "knob"))
            except Exception as error:
                raise self.site.failure("cores(p, c)", error) from error
            if type(cores) is not int or cores < 1:
                raise self.site.error(f"cores(p, c) returned {cores!r}, not a positive int")
        return cores

    @cached_property
    def energy_metrics(self) -> frozenset[str]:
        """Names of the metrics that are made of the energy, too."""
        return frozenset(name for name, metric in self.metrics.items() if _takes_energy(metric))

    def measured_metrics(self, problem: Problem, latency_us: float, energy_j: float | None = None) -> dict[str, float]:
        """Return the file's own metrics of a measured config.

        A metric that takes the energy is left out where that is unknown, as is a value that is not finite.

        Raises:
            KernelFileError: a metric raised, or returned something else than a number.
        """
        latency_s = latency_us / 1e6
        found = self._throughput(problem, latency_us)
        for name, metric in self.metrics.items():
            is_of_energy = name in self.energy_metrics
            if is_of_energy and energy_j is None:
                continue
            given = (latency_s, energy_j) if is_of_energy else (latency_s,)
            try:
                value = float(metric(Values(problem, "problem key"), *given))
            except Exception as error:
                raise self.site.failure(f"the metric {name}(p, t{', e' if is_of_energy else ''})", error) from error
            if math.isfinite(value):
                found[name] = value
        return found

    def _throughput(self, problem: Problem, latency_us: float) -> dict[str, float]:
        values = Values(problem, "problem key")
        try:
            flops, moved = (work(values) if callable(work) else work for work in (self.flops, self.bytes))
            return throughput(flops, moved, latency_us)
        except Exception as error:
            raise self.site.failure("flops(p) or bytes(p)", error) from error

    def _layouts(self, problem: Problem) -> dict[str, Layout]:
        text = canonical(problem)
        if text not in self._known_layouts:
            specs = self.input_specs(problem)
            self._known_layouts[text] = {name: layout(value) for name, value in specs.items()}
        return self._known_layouts[text]

    @cached_property
    def _known_layouts(self) -> dict[str, dict[str, Layout]]:
        # By problem: a function that makes tensors itself is not called for each config again.
        return {}


@dataclass
class Collector:
    """Declarations collected while one kernel file is imported; ``path`` is that file."""

    path: Path
    kernels: list[Kernel] = field(default_factory=list)
    errors: list[KernelFileError] = field(default_factory=list)

    def add(self, kernel: Kernel) -> None:
        """Keep a kernel, or the error that its name is taken."""
        for first in self.kernels:
            if first.name == kernel.name:
                self.errors.append(
                    kernel.site.error(
                        f"the name {kernel.name!r} is taken by the kernel in line {first.site.line}",
                        hint="give one of them a name=…",
                    )
                )
                return
        self.kernels.append(kernel)


class EndOfDeclarations(BaseException):
    """The end of a kernel file's import, at its first call of ``ktuned.tune``: what follows is for its program alone.

    It is no ``Exception``, which the program's own code may catch.
    """


_collector: ContextVar[Collector | None] = ContextVar("ktuned_collector", default=None)


@contextmanager
def collecting(path: Path) -> Iterator[Collector]:
    """Collect the kernels, and the errors, of the kernel file at ``path`` while it is imported."""
    collector = Collector(path)
    token = _collector.set(collector)
    try:
        yield collector
    finally:
        _collector.reset(token)


def kernel(
    *,
    backend: str = UNSET,
    space: Space = UNSET,
    inputs: Inputs = UNSET,
    sources: str | Sequence[str] = (),
    problems: Problem | Sequence[Problem | Weighted] | Callable[[], Iterable[Problem | Weighted]] = (),
    reference: Callable[..., Mapping[str, Any]] | Literal["default"] | None = None,
    check: Callable[[Any, Any], object] | None = UNSET,
    rtol: float = DEFAULT_RTOL,
    atol: float = DEFAULT_ATOL,
    max_mismatched_ratio: float = 0.0,
    default: Config | None = None,
    specialize: str | Sequence[str] | None = None,
    setup: str | Sequence[str] | Callable[[Any], object] = (),
    name: str | None = None,
    strategy: str = "auto",
    seed: int = 0,
    preset: str = UNSET,
    trials: int = UNSET,
    seconds: float | None = UNSET,
    early_stop: float = 3.0,
    deadlines: Mapping[str, float] | None = None,
    until: str = "budget",
    prior: Callable[..., Any] | None = None,
    timing: str = "events",
    cores: int | Callable[[Any, Any], int] | None = None,
    metrics: Mapping[str, Metric] | None = None,
    objective: Objective | str = LATENCY,
    flops: Declared = None,
    bytes: Declared = None,  # noqa: A002 - the field's own word
    depends: str | Sequence[str] = (),
    bucket: Mapping[str, Any] | Callable[[Any], Mapping[str, Any]] | None = None,
    best_for: str = "each",
    **unknown: object,
) -> Callable[[KernelFunction], Kernel]:
    """Declare the decorated function ``(p, c) -> Build`` to be a kernel.

    ``backend``, ``space`` and one of ``reference``, ``check`` or ``check=None`` are required, and ``inputs`` unless the
    kernel takes no tensors. ``reference="default"`` compares all configs with the default one. ``sources`` are
    relative to the file; ``problems`` are one, a list or a callable; ``specialize`` names the problem keys that enter
    the key (all, if it is not given). ``trials`` and ``seconds`` end a job, ``early_stop`` gives up on configs
    that take that many times the best; a project's ``ktuned.toml`` has defaults of ``preset``, ``trials`` and
    ``seconds``; ``deadlines`` are seconds by phase (:data:`~ktuned.spec.faults.DEADLINES`).
    ``depends`` names files by patterns relative to the kernel file, for what cannot be observed: data that native code
    or a child process reads.
    ``timing`` is how a GPU kernel is timed: ``events`` with cold caches, or ``graph`` replay for kernels of a few µs.
    ``cores``, a number or ``(p, c) -> number``, is how many cores a CPU config uses, where its first launch does not
    show it.
    ``bucket`` maps problems to those that stand for them: ``dict(M="pow2")``, or a function ``p -> dict``.
    ``metrics`` are shown beside latencies: ``dict(tflops=lambda p, t: 2e-12 * p.M * p.N * p.K / t)``, ``t`` in seconds;
    one of ``(p, t, e)`` also takes the energy of a launch in joules.
    ``objective`` is what a tuning improves: ``"latency"``, ``"energy"``, ``"edp"`` (their product), or a metric, as
    ``maximize("tflops")`` or ``minimize(…)``.
    ``flops`` and ``bytes`` are the work of a launch, numbers or ``p -> number``; operations of another precision than
    float32 as ``dict(float16=…)``. They give the metrics ``tflops`` and ``gbps``, and the share of the device's limit.
    ``best_for="all"`` serves one config for all declared problems, the best for the sum of their times; a problem may
    carry its weight there: ``(dict(M=16), 3.0)``.

    Raises:
        KernelFileError: the declaration has an error. While a kernel file is loaded the error is kept
            for its report instead, so that the file's other kernels go on.
    """

    def declare(function: KernelFunction) -> Kernel:
        collector, file = _collector.get(), _declaring_file(function)
        line = function.__code__.co_firstlineno if hasattr(function, "__code__") else 0
        kernel_name = getattr(function, "__name__", "kernel") if name is None else name
        site = Site(function.__code__.co_filename if line else str(file), line, str(kernel_name))
        # A project's defaults (``ktuned.toml``) stand in for the budgets that the file does not give.
        all_budgets = {"preset": preset, "trials": trials, "seconds": seconds}
        budgets: dict[str, Any] = {key: value for key, value in all_budgets.items() if value is not UNSET}
        declared = Kernel(
            name=kernel_name,
            function=function,
            file=file,
            site=site,
            backend=backend,
            space=space,
            inputs=no_tensors if inputs is UNSET and reference is None else inputs,
            sources=_as_tuple(sources),
            problems=problems if callable(problems) else _as_tuple(problems),
            reference=reference,
            check=None if check is UNSET else check,
            rtol=rtol,
            atol=atol,
            max_mismatched_ratio=max_mismatched_ratio,
            default=default,
            specialize=None if specialize is None else _as_tuple(specialize),
            setup=setup if callable(setup) else _as_tuple(setup),
            timing=timing,
            plan=Plan(
                strategy,
                seed,
                early_stop=early_stop,
                deadlines=dict(deadlines or {}),
                until=until,
                objective=objective,
                **budgets,
            ),
            prior=prior,
            cores=cores,
            metrics={} if metrics is None else metrics,
            flops=flops,
            bytes=bytes,
            given=tuple(budgets),
            depends=_as_tuple(depends),
            bucket=bucket,
            best_for=best_for,
        )
        fault = (
            unknown_fault(unknown, kernel.__kwdefaults__ or ()) or check_fault(reference, check) or fault_of(declared)
        )
        is_ours = collector is not None and collector.path == file
        if not fault:
            if collector is not None and is_ours:
                collector.add(declared)
            return declared
        if collector is None:
            raise site.error(fault)
        if is_ours:
            collector.errors.append(site.error(fault))
        return cast(Kernel, function)

    return declare


def end_declarations() -> None:
    """End the import of a kernel file by a worker, if one is under way: the caller is for programs alone.

    Raises:
        EndOfDeclarations: the kernel file itself is the caller, directly or through a function.
        KernelFileError: a module is, which the kernel file imports.
    """
    collector = _collector.get()
    if collector is None:
        return
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    place = "" if frame is None else frame.f_code.co_filename
    if place == str(collector.path):
        raise EndOfDeclarations
    line = 0 if frame is None else frame.f_lineno
    raise KernelFileError(
        f"{place}:{line}: ktuned.tune is called while {collector.path} imports this module",
        path=place,
        line=line,
        hint="put the call below `if __name__ == '__main__':`, or into a function",
    )


def _takes_energy(metric: Callable[..., Any]) -> bool:
    try:
        return len(inspect.signature(metric).parameters) > 2
    except (TypeError, ValueError):
        # Some built-in functions have no signature to be read.
        return False


def _declaring_file(function: Callable[..., Any]) -> Path:
    """Return the file whose module level is running: a factory elsewhere may declare a kernel for it."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    at_module_level = frame.f_code.co_name == "<module>"
    code = frame.f_code if at_module_level else getattr(function, "__code__", frame.f_code)
    return Path(code.co_filename)


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)
