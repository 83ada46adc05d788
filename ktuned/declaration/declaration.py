"""``@kernel``: the declaration of a kernel in its file.

While a worker imports a kernel file, a collector gathers the file's kernels and errors, so that a wrong declaration
does not affect the others. In any other process, a wrong declaration raises its error at once.

A declaration belongs to the file whose module level is running, wherever the decorator is called: a factory in a module
may declare kernels for the files that import it. Declarations of other files, such as a kernel file that is imported as
a module, are not collected.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final, Literal, cast

from ktuned.declaration.declaration_faults import (
    UNSET,
    find_check_fault,
    find_kernel_fault,
    find_numerics_fault,
    find_unknown_argument,
)
from ktuned.declaration.declared_kernel import Inputs, Kernel, KernelFunction, Metric, no_tensors
from ktuned.declaration.spaces import Space
from ktuned.declaration.user_values import Site
from ktuned.declaration.work import DeclaredWork
from ktuned.dependencies import is_ours
from ktuned.model import (
    LATENCY,
    Config,
    KernelFileError,
    Objective,
    Plan,
    Problem,
    with_numerics,
)

DEFAULT_RTOL = 1e-4
DEFAULT_ATOL = 1e-4
"""Wide enough for float32 sums in another order. Kernels of half precision declare their own tolerance."""


@dataclass
class DeclarationCollector:
    """The declarations of the kernel file at ``path``, collected while it is imported."""

    path: Path
    kernels: list[Kernel] = field(default_factory=list)
    errors: list[KernelFileError] = field(default_factory=list)

    def add_kernel(self, kernel: Kernel) -> None:
        """Add a kernel, or an error if another kernel of the file has the same name."""
        for first in self.kernels:
            if first.name == kernel.name:
                self.errors.append(
                    kernel.site.make_error(
                        f"the name {kernel.name!r} is taken by the kernel in line {first.site.line}",
                        hint="give one of them a name=…",
                    )
                )
                return
        self.kernels.append(kernel)


class EndOfDeclarations(BaseException):
    """Ends the import of a kernel file at its first call of ``ktuned.tune``: the rest only concerns the program.

    It is no ``Exception``, because the program's own code may catch those.
    """


_collector: ContextVar[DeclarationCollector | None] = ContextVar("ktuned_collector", default=None)

_imports: Final[list[DeclarationCollector]] = []
"""The imports in progress, for threads that a kernel file starts, which do not inherit the context variable."""


@contextmanager
def collect_declarations(path: Path) -> Iterator[DeclarationCollector]:
    """Collect the kernels and errors that the kernel file at ``path`` declares within the block."""
    collector = DeclarationCollector(path)
    token = _collector.set(collector)
    _imports.append(collector)
    try:
        yield collector
    finally:
        _imports.remove(collector)
        _collector.reset(token)


def kernel(
    *bare: object,
    backend: str = UNSET,
    space: Space = UNSET,
    inputs: Inputs = UNSET,
    sources: str | Sequence[str] = (),
    problems: Problem | Sequence[Problem] | Callable[[], Iterable[Problem]] = (),
    reference: Callable[..., Mapping[str, Any]] | Literal["default"] | None = None,
    check: Callable[[Any, Any], object] | None = UNSET,
    rtol: float = UNSET,
    atol: float = UNSET,
    max_mismatched_ratio: float = 0.0,
    default: Config | None = None,
    specialize: str | Sequence[str] | None = None,
    setup: str | Sequence[str] | Callable[[Any], object] = (),
    name: str | None = None,
    strategy: str = "auto",
    seed: int = 0,
    preset: str = UNSET,
    trials: int = UNSET,
    time_limit_s: float | None = UNSET,
    early_stop: float = 3.0,
    deadlines: Mapping[str, float] | None = None,
    until: str = "budget",
    prior: Callable[..., Any] | None = None,
    timing: str = "events",
    cores: int | Callable[[Any, Any], int] | None = None,
    metrics: Mapping[str, Metric] | None = None,
    objective: Objective | str = LATENCY,
    numerics: str = UNSET,
    flops: DeclaredWork = None,
    bytes: DeclaredWork = None,  # noqa: A002 - the field's own word
    depends: str | Sequence[str] = (),
    bucket: Mapping[str, Any] | None = None,
    is_data: bool = False,
    **unknown: object,
) -> Callable[[KernelFunction], Kernel]:
    """Declare the decorated function ``(p, c) -> Build`` to be a kernel.

    Required are ``backend``, ``space``, one of ``reference``, ``check`` or ``check=None``, and ``inputs`` unless the
    kernel takes no tensors. ``p`` is a problem and ``c`` a config; ``p.M`` and ``p["M"]`` are the same.

    Args:
        *bare: refused; all arguments are given by name.
        backend: name of the backend that compiles and launches the Builds.
        space: the configs, as :func:`~ktuned.declaration.spaces.space` makes them.
        inputs: ``p -> dict`` of tensors by name.
        sources: source files, relative to the kernel file.
        problems: one problem, a list, or a callable that returns one.
        reference: called with the inputs by name; returns the expected outputs by name. ``"default"``: the outputs of
            the default config are the expected ones.
        check: ``(inputs, outputs)``; raises, or returns a bool. None turns checking off.
        rtol: relative tolerance of outputs, 1e-4 by default.
        atol: absolute tolerance, 1e-4 by default. Unless the file gives one of the two, integers and bools must be
            equal.
        max_mismatched_ratio: share of elements that may differ by more, from 0 to 1.
        default: the config that is served before there is a winner, and the base of speed-ups.
        specialize: the problem keys that enter the key of winners; all by default. All values of the others share one
            config.
        setup: names of tensors to restore before each launch, or a callable that is given the inputs.
        name: the kernel's name, if it is not the function's.
        strategy: how the space is searched.
        seed: seeds the search's random numbers.
        preset: how thorough measurements are: ``fast``, ``default`` or ``thorough``.
        trials: ends a job after so many trials.
        time_limit_s: ends a job after that time. ``ktuned.toml`` has a project's defaults of these three.
        early_stop: gives up on configs that take this many times as long as the best config.
        deadlines: seconds by phase (:data:`~ktuned.declaration.declaration_faults.DEADLINES`).
        until: ``"converged"`` ends a job before its budget when a better config is unlikely.
        prior: ``(p, c) -> score`` or ``p -> configs``: configs that the author expects to be good, to try them first.
        timing: how a GPU kernel is timed: ``events`` with cold caches, or ``graph`` replay for kernels of a few µs. On
            any device, ``returned``: a launch returns its own time in µs.
        cores: number of cores that a CPU config uses, or ``(p, c) -> cores``, if the first launch does not show it.
        metrics: figures shown beside latencies, such as ``dict(tflops=lambda p, t: 2e-12 * p.M * p.N * p.K / t)``;
            ``t`` is in seconds.
        objective: what a tuning improves: ``"latency"``, or a metric: ``maximize("tflops")``, ``minimize("energy")``.
        numerics: ``"exact"`` lets only configs win whose outputs have the bits of the default's, on every input that is
            tried; ``"tolerance"`` compares outputs with the reference alone.
        flops: operations of a launch, a number or ``p -> number``; ``dict(float16=…)`` for another precision than
            float32. It gives the metric ``tflops``, and the share of the device's limit.
        bytes: bytes that a launch must move, a number or ``p -> number``; they give the metric ``gbps``.
        depends: patterns of files, relative to the kernel file, whose reads cannot be observed.
        bucket: rules by problem key that map a problem to the one that stands for it: ``dict(M="pow2")``.
        is_data: for kernel files that programs write. It promises that the file runs no code except ktuned's and its
            plugins', so that one worker can process many such files.
        **unknown: refused, with the name that was probably meant.

    Raises:
        KernelFileError: the declaration has an error. While a kernel file is loaded, the error is collected instead, so
            that the file's other kernels can be used.
    """
    if bare:
        raise TypeError("@kernel takes arguments by name alone: @kernel(backend=…, space=…, …)")

    def declare_kernel(function: KernelFunction) -> Kernel:
        # The place: the function's own line, or a line of the declaring file if a plugin made the function.
        collector, (file, called_at) = _collector.get(), _find_declaring_file(function)
        kernel_name = getattr(function, "__name__", "kernel") if name is None else name
        place = str(file), called_at
        if hasattr(function, "__code__") and not is_ours(str(function.__module__)):
            place = function.__code__.co_filename, function.__code__.co_firstlineno
        site = Site(*place, str(kernel_name))
        # A project's defaults (``ktuned.toml``) stand in for the budgets that the file does not give.
        all_budgets = {"preset": preset, "trials": trials, "time_limit_s": time_limit_s}
        budgets: dict[str, Any] = {key: value for key, value in all_budgets.items() if value is not UNSET}
        wrong_numerics = find_numerics_fault(numerics, default, is_data=is_data)
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
            rtol=DEFAULT_RTOL if rtol is UNSET else rtol,
            atol=DEFAULT_ATOL if atol is UNSET else atol,
            has_exact_integers=rtol is UNSET and atol is UNSET,
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
                objective=objective if numerics is UNSET or wrong_numerics else with_numerics(objective, numerics),
                **budgets,
            ),
            prior=prior,
            cores=cores,
            metrics={} if metrics is None else metrics,
            flops=flops,
            bytes=bytes,
            given=(*budgets, *(() if numerics is UNSET else ("numerics",))),
            depends=_as_tuple(depends),
            bucket=bucket,
            is_data=is_data,
        )
        # Collect a correct kernel if it belongs to the file that is being loaded. Collect or raise an error.
        fault = (
            find_unknown_argument(unknown, kernel.__kwdefaults__ or ())
            or find_check_fault(reference, check)
            or wrong_numerics
            or find_kernel_fault(declared)
        )
        is_collected = collector is not None and collector.path == file
        if not fault:
            if collector is not None and is_collected:
                collector.add_kernel(declared)
            return declared
        if collector is None:
            raise site.make_error(fault)
        if collector.path == file:
            collector.errors.append(site.make_error(fault))
        return cast(Kernel, function)

    return declare_kernel


def end_declarations() -> None:
    """End a worker's import of a kernel file, if one is in progress. Called by ``ktuned.tune``, which is for programs.

    Raises:
        EndOfDeclarations: the kernel file itself calls ``tune``, directly, through a function or in a thread.
        KernelFileError: a module that the kernel file imports calls it.
    """
    collector = _collector.get()
    if collector is None and _imports:
        raise EndOfDeclarations
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


def _find_declaring_file(function: Callable[..., Any]) -> tuple[Path, int]:
    """Return the file whose module level is running, and its current line; the function's own file if none is."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    if frame.f_code.co_name == "<module>":
        return Path(frame.f_code.co_filename), frame.f_lineno
    return Path(getattr(function, "__code__", frame.f_code).co_filename), 0


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)
