"""A call's tuning: the request to the daemon, its winner as TileLang's kernel, and the upgrade of a kernel in use."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from ktuned.dropin import Best, account, shared
from ktuned.model import Unsupported
from ktuned_tilelang.adoption import Adopted, Request
from ktuned_tilelang.artifact import load
from ktuned_tilelang.call import EvaluatedCall, LeftAlone, Options, evaluate, knobs
from ktuned_tilelang.execution import AUTO, CUTEDSL

Mode = Literal["wait", "background"]
Upgrade = Literal["once", "never", "always"]
WithoutDaemon = Literal["tilelang", "first"]

_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "mode": ("wait", "background"),
    "upgrade": ("once", "never", "always"),
    "without_daemon": ("tilelang", "first"),
}
_log = logging.getLogger("ktuned.tilelang")

FAILED: Final = "Auto-tuning failed: No configuration successfully compiled and passed benchmarking/validation."
"""TileLang's own words."""


@dataclass(frozen=True, slots=True)
class Choices:
    """Additions of ktuned to TileLang's options: see :func:`ktuned_tilelang.autotune`.

    Raises:
        ValueError: one has no such value.
    """

    mode: Mode = "wait"
    upgrade: Upgrade = "once"
    without_daemon: WithoutDaemon = "tilelang"
    pin: str | None = None

    def __post_init__(self) -> None:
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise ValueError(f"{name}={getattr(self, name)!r}: give one of {', '.join(map(repr, known))}")


@dataclass(frozen=True)
class Task:
    """A function's call that is to be tuned, in TileLang's terms.

    Attributes:
        function: the function that was decorated.
        configs: the configs of the call.
        elaborate: makes the program of a config.
        compile: compiles a config in this process.
        compile_args: TileLang's own.
        compile_flags: of ``@tilelang.jit``.
        profile_args: TileLang's own.
        inputs: tensors that the application gives.
        timeout_s: the most time of a config.
        early_stop: how many times the best a config may take, or 0.
    """

    function: Any
    configs: Sequence[Mapping[str, Any]]
    elaborate: Callable[..., Any]
    compile: Callable[[Mapping[str, Any]], Any]
    compile_args: Any
    compile_flags: tuple[str, ...]
    profile_args: Any
    inputs: Sequence[Any] | None
    timeout_s: float
    early_stop: float

    @property
    def name(self) -> str:
        """The function's module and name."""
        return f"{self.function.__module__}.{self.function.__qualname__}"


@dataclass(frozen=True)
class Found:
    """A kernel of TileLang's, its config and its latency in milliseconds, where these are known."""

    kernel: Any
    config: Mapping[str, Any] | None
    latency: float | None = None
    ref_latency: float | None = None


def tune(task: Task, choices: Choices) -> Found | None:
    """Return the kernel that a call gets, or ``None`` if TileLang is to tune it.

    Raises:
        RuntimeError: no config compiles, runs and computes the right result.
        Exception: what the function raised for each config.
    """
    try:
        evaluated = _evaluated(task)
    except LeftAlone as error:
        _leave_alone(task, str(error))
        return None
    request = Request(_adopted(task, evaluated), evaluated)
    tunings = shared(choices.pin)
    best = tunings.best(request)
    if best is None and not tunings.has_daemon():
        if choices.without_daemon == "first":
            return _first(task, evaluated)
        _leave_alone(task, "no daemon runs")
        return None
    account.take_over(task.name)
    if choices.mode == "background":
        return _in_background(task, request, best, choices)
    if best is None or not best.is_fresh or tunings.is_open(request):
        best = tunings.wait(request)
    if best is None:
        raise RuntimeError(FAILED)
    found = _judged(task, _found(task, evaluated, best))
    if found is None:
        _leave_alone(task, "its winner does not compute what ref_prog does", logging.WARNING)
    return found


def _leave_alone(task: Task, reason: str, level: int = logging.INFO) -> None:
    account.leave_alone(task.name, reason)
    _log.log(level, "%s is left to TileLang: %s", task.name, reason)


def _in_background(task: Task, request: Request, best: Best | None, choices: Choices) -> Found:
    """Return the best kernel that is known, and have it exchanged in place for the winner."""
    evaluated = request.evaluated
    tunings = shared(choices.pin)
    is_known = best is not None and best.text in evaluated.configs
    found = _found(task, evaluated, best) if best is not None and is_known else _first(task, evaluated)
    is_settled = best is not None and best.is_fresh and is_known and not tunings.is_open(request)
    if is_settled and choices.upgrade != "always":
        return found

    def upgrade(text: str, artifact: str | None) -> bool:
        if text in evaluated.configs:
            better = _judged(task, _found(task, evaluated, Best(text, True, artifact)))
            if better is not None:
                exchange(found.kernel, better)
        return choices.upgrade == "once"

    tunings.ask(request, None if choices.upgrade == "never" else upgrade)
    return found


def exchange(kernel: Any, better: Found) -> None:
    """Put another kernel in the place of one that an application holds; its next call launches that."""
    for name in ("adapter", "artifact", "prim_func", "latency", "config", "ref_latency"):
        setattr(kernel, name, getattr(better.kernel, name, None))
    # At the end: until then the old one is called.
    kernel.torch_function = better.kernel.torch_function


def _evaluated(task: Task) -> EvaluatedCall:
    arguments = task.compile_args
    target = arguments.target
    kind = getattr(getattr(target, "kind", None), "name", str(target))
    if kind != "cuda":
        raise LeftAlone(f"its target is {kind}, and ktuned runs TileLang's kernels on NVIDIA GPUs")
    is_cutedsl = CUTEDSL in getattr(target, "keys", ())
    out_idx = arguments.out_idx
    options = Options(
        out_idx=() if out_idx is None else (out_idx,) if isinstance(out_idx, int) else tuple(out_idx),
        target=CUTEDSL if is_cutedsl else "cuda",
        execution_backend=arguments.execution_backend or AUTO,
        compile_flags=task.compile_flags,
    )
    base = {str(getattr(key, "value", key)): value for key, value in (arguments.pass_configs or {}).items()}
    return evaluate(task.configs, task.elaborate, options, base, task.inputs, task.profile_args.supply_type.name)


def _adopted(task: Task, evaluated: EvaluatedCall) -> Adopted:
    profile = task.profile_args
    names = list(dict.fromkeys(name for config in evaluated.configs.values() for name in config))
    is_known = bool(evaluated.call.options.out_idx)
    return Adopted(
        module=task.function.__module__,
        qualname=task.function.__qualname__,
        configs=tuple(knobs(config, names) for config in evaluated.configs.values()),
        restored=() if is_known else tuple(evaluated.call.tensors),
        rtol=profile.rtol,
        atol=profile.atol,
        max_mismatched_ratio=profile.max_mismatched_ratio,
        skips_check=profile.skip_check,
        timeout_s=float(task.timeout_s),
        early_stop=task.early_stop,
        timing="graph" if profile.backend == "cudagraph" else "events",
    )


def _first(task: Task, evaluated: EvaluatedCall) -> Found:
    """Return the first config that TileLang compiles in this process.

    Raises:
        Exception: what it raised for the last of them.
    """
    fault: Exception = RuntimeError(FAILED)
    for config in evaluated.configs.values():
        try:
            return Found(task.compile(config), dict(config))
        except Exception as error:
            fault = error
    raise fault


def _found(task: Task, evaluated: EvaluatedCall, best: Best) -> Found:
    """Return the kernel of a config that the daemon knows: loaded from its artifact, else compiled here."""
    config = dict(evaluated.configs[best.text])
    latency = None if best.latency_us is None else best.latency_us / 1000
    kernel = None
    if best.artifact is not None:
        try:
            kernel = load(best.artifact)
            kernel.prim_func = evaluated.prim_funcs[best.text]
        except (OSError, Unsupported, RuntimeError) as error:
            _log.info("%s cannot be loaded: %s", best.artifact, error)
    if kernel is None:
        kernel = task.compile(config)
    kernel.update_tuner_result(latency=latency, config=config, ref_latency=None)
    return Found(kernel, config, latency)


def _judged(task: Task, found: Found) -> Found | None:
    """Return a kernel whose results ``ref_prog`` confirms, with the reference's latency; ``None`` if it does not."""
    profile = task.profile_args
    if profile.ref_prog is None:
        return found
    profiler = found.kernel.get_profiler(tensor_supply_type=profile.supply_type)
    supply = profile.supply_prog
    inputs = (
        profiler._get_inputs(with_output=False) if supply is None else supply(profiler._get_params(with_output=False))
    )
    if not profile.skip_check:
        try:
            if profile.manual_check_prog is not None:
                profiler.manual_assert_close(
                    profile.ref_prog, input_tensors=inputs, manual_check_prog=profile.manual_check_prog
                )
            else:
                profiler.assert_allclose(
                    profile.ref_prog,
                    input_tensors=inputs,
                    rtol=profile.rtol,
                    atol=profile.atol,
                    max_mismatched_ratio=profile.max_mismatched_ratio,
                )
        except AssertionError as error:
            _log.warning("%s: %s", task.name, error)
            return None
    ref_latency = profiler.do_bench(
        profile.ref_prog, n_warmup=profile.warmup, n_repeat=profile.rep, input_tensors=inputs, backend=profile.backend
    )
    found.kernel.update_tuner_result(latency=found.latency, config=dict(found.config or {}), ref_latency=ref_latency)
    return Found(found.kernel, found.config, found.latency, ref_latency)
