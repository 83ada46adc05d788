"""``@kernel``: the declaration of a kernel in its file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final, Literal, cast

from ktuned.model import (
    LATENCY,
    Config,
    KernelFileError,
    Objective,
    Plan,
    Problem,
    with_numerics,
)
from ktuned.spec.declaration_faults import (
    UNSET,
    find_check_fault,
    find_kernel_fault,
    find_numerics_fault,
    find_unknown_argument,
)
from ktuned.spec.declared_kernel import Inputs, Kernel, KernelFunction, Metric, Weighted, no_tensors
from ktuned.spec.origin import is_ours
from ktuned.spec.spaces import Space
from ktuned.spec.user_values import Site
from ktuned.spec.work import DeclaredWork

DEFAULT_RTOL = 1e-4
DEFAULT_ATOL = 1e-4
"""Wide enough for float32 sums in another order; half-precision kernels state their own."""


@dataclass
class DeclarationCollector:
    """Declarations collected while one kernel file is imported; ``path`` is that file."""

    path: Path
    kernels: list[Kernel] = field(default_factory=list)
    errors: list[KernelFileError] = field(default_factory=list)

    def add_kernel(self, kernel: Kernel) -> None:
        """Keep a kernel, or the error that its name is taken."""
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
    """The end of a kernel file's import, at its first call of ``ktuned.tune``: what follows is for its program alone.

    It is no ``Exception``, which the program's own code may catch.
    """


_collector: ContextVar[DeclarationCollector | None] = ContextVar("ktuned_collector", default=None)

_imports: Final[list[DeclarationCollector]] = []
"""The imports that are under way, for threads that a kernel file starts: they have no context of its own."""


@contextmanager
def collect_declarations(path: Path) -> Iterator[DeclarationCollector]:
    """Collect the kernels, and the errors, of the kernel file at ``path`` while it is imported."""
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
    problems: Problem | Sequence[Problem | Weighted] | Callable[[], Iterable[Problem | Weighted]] = (),
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
    seconds: float | None = UNSET,
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
    bucket: Mapping[str, Any] | Callable[[Any], Mapping[str, Any]] | None = None,
    best_for: str = "each",
    batch_invariant: str | Sequence[str] = (),
    is_data: bool = False,
    portfolio: Mapping[str, Any] | None = None,
    **unknown: object,
) -> Callable[[KernelFunction], Kernel]:
    """Declare the decorated function ``(p, c) -> Build`` to be a kernel.

    ``backend``, ``space`` and one of ``reference``, ``check`` or ``check=None`` are required, and ``inputs`` unless the
    kernel takes no tensors. ``reference="default"`` compares all configs with the default one. ``sources`` are
    relative to the file; ``problems`` are one, a list or a callable; ``specialize`` names the problem keys that enter
    the key (all, if it is not given). ``trials`` and ``seconds`` end a job, ``early_stop`` gives up on configs
    that take that many times the best; a project's ``ktuned.toml`` has defaults of ``preset``, ``trials`` and
    ``seconds``; ``deadlines`` are seconds by phase (:data:`~ktuned.spec.declaration_faults.DEADLINES`).
    ``depends`` names files by patterns relative to the kernel file, for what cannot be observed: data that native code
    or a child process reads.
    ``rtol`` and ``atol`` are the tolerances of outputs, 1e-4 by default; outputs of integers and bools are exact unless
    the file gives one of them.
    ``timing`` is how a GPU kernel is timed: ``events`` with cold caches, or ``graph`` replay for kernels of a few µs.
    ``cores``, a number or ``(p, c) -> number``, is how many cores a CPU config uses, where its first launch does not
    show it.
    ``bucket`` maps problems to those that stand for them: ``dict(M="pow2")``, or a function ``p -> dict``.
    ``metrics`` are shown beside latencies: ``dict(tflops=lambda p, t: 2e-12 * p.M * p.N * p.K / t)``, ``t`` in seconds;
    one of ``(p, t, e)`` also takes the energy of a launch in joules.
    ``objective`` is what a tuning improves: ``"latency"``, ``"energy"``, ``"edp"`` (their product), or a metric, as
    ``maximize("tflops")`` or ``minimize(…)``.
    ``numerics="exact"`` lets only configs win whose outputs are bit-equal to the default's, on every input that is
    tried; with ``"tolerance"`` outputs are compared with the reference alone.
    ``flops`` and ``bytes`` are the work of a launch, numbers or ``p -> number``; operations of another precision than
    float32 as ``dict(float16=…)``. They give the metrics ``tflops`` and ``gbps``, and the share of the device's limit.
    ``best_for="all"`` serves one config for all declared problems, the best for the sum of their times; a problem may
    carry its weight there: ``(dict(M=16), 3.0)``.
    ``batch_invariant=("M",)`` serves configs under which rows have equal bits whatever ``M`` is: to problems that
    differ in ``M`` alone those of one class of equal bits, the one with the least weighted sum of times.
    ``is_data`` is for kernel files that programs write: it promises that the file runs no code but ktuned's and its
    plugins', so that workers go from one such file to the next without being replaced.
    ``portfolio=dict(over=[dict(M=16, …), …], configs=4, loss=0.02)`` has few configs made for many problems, and a
    decision tree that chooses among them for all others; ``over`` is a list as ``problems`` is, or a callable.

    Raises:
        KernelFileError: the declaration has an error. While a kernel file is loaded the error is kept
            for its report instead, so that the file's other kernels go on.
    """
    if bare:
        raise TypeError("@kernel takes arguments by name alone: @kernel(backend=…, space=…, …)")

    def declare(function: KernelFunction) -> Kernel:
        collector, (file, called_at) = _collector.get(), _find_declaring_file(function)
        kernel_name = getattr(function, "__name__", "kernel") if name is None else name
        place = str(file), called_at
        # A plugin declares for the user's file: its own line mends nothing.
        if hasattr(function, "__code__") and not is_ours(str(function.__module__)):
            place = function.__code__.co_filename, function.__code__.co_firstlineno
        site = Site(*place, str(kernel_name))
        # A project's defaults (``ktuned.toml``) stand in for the budgets that the file does not give.
        all_budgets = {"preset": preset, "trials": trials, "seconds": seconds}
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
            best_for=best_for,
            batch_invariant=_as_tuple(batch_invariant),
            is_data=is_data,
            portfolio=portfolio,
        )
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

    return declare


def end_declarations() -> None:
    """End the import of a kernel file by a worker, if one is under way: the caller is for programs alone.

    Raises:
        EndOfDeclarations: the kernel file itself is the caller, directly, through a function or in a thread.
        KernelFileError: a module is, which the kernel file imports.
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
    """Return the file whose module level is running, and its line: a factory elsewhere may declare a kernel for it."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    if frame.f_code.co_name == "<module>":
        return Path(frame.f_code.co_filename), frame.f_lineno
    return Path(getattr(function, "__code__", frame.f_code).co_filename), 0


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)
