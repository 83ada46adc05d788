"""Decides which kernel a call gets, records the call for the daemon, and exchanges a kernel in use for a later winner.

An application may keep a kernel object of TileLang's for ever. So a later winner replaces the content of that object
(:func:`exchange_kernel`), in the thread that follows the daemon. The object's next call launches the winner; a call
that is running at that moment ends with the kernel that it began with.

A call that waits for the daemon gets a winner or an error (:class:`TuningFailed`), never just any config, because
programs read the kernel's latency at once, as with TileLang. Without a daemon TileLang tunes, unless the author chose
the first config.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

from ktuned.dropin import (
    NOT_ACCEPTED,
    Answer,
    KeyedCall,
    LaunchCounter,
    NotTunable,
    Policy,
    account,
    find_device_model,
    find_log,
    leave_to_framework,
    name_function,
)
from ktuned.model import Unsupported, spell_values
from ktuned_tilelang.artifact import load
from ktuned_tilelang.call import PASS_CONFIGS, Call, CompileOptions, EvaluatedCall, evaluate_call, make_unlisted_config
from ktuned_tilelang.declaration import Declaration
from ktuned_tilelang.environment import find_deciding_variables
from ktuned_tilelang.execution import AUTO, CUTEDSL

FRAMEWORK: Final = "TileLang"

FAILED: Final = "Auto-tuning failed: No configuration successfully compiled and passed benchmarking/validation."
"""TileLang's own message, which programs may look for."""


class TuningFailed(RuntimeError):
    """The tuning of a call that waits for it ended without a winner."""


@dataclass(frozen=True)
class TunerRun:
    """One run of TileLang's tuner: a call to tune, with TileLang's own objects.

    Attributes:
        function: the function that was decorated.
        configs: the configs of the call.
        elaborate: makes the program of a config.
        compile: compiles a config in this process.
        compile_args: TileLang's arguments of compiling.
        compile_flags: the flags of ``@tilelang.jit``.
        profile_args: TileLang's arguments of measuring.
        timeout_s: deadline of each phase of a config.
        early_stop: a config that takes this many times the best is stopped early; 0 for no limit.
    """

    function: Any
    configs: Sequence[Mapping[str, Any]]
    elaborate: Callable[..., Any]
    compile: Callable[[Mapping[str, Any]], Any]
    compile_args: Any
    compile_flags: tuple[str, ...]
    profile_args: Any
    timeout_s: float
    early_stop: float

    @property
    def name(self) -> str:
        """The function's module and name."""
        return f"{self.function.__module__}.{self.function.__qualname__}"

    def describe_call(self) -> EvaluatedCall:
        """Return the call as plain data.

        Raises:
            NotTunable: another process cannot make it.
            Exception: what the function raised for each config.
        """
        arguments = self.compile_args
        target = arguments.target
        kind = getattr(getattr(target, "kind", None), "name", str(target))
        if kind != "cuda":
            raise NotTunable(f"its target is {kind}, and ktuned runs TileLang's kernels on NVIDIA GPUs")
        options = CompileOptions(
            out_idx=self._out_indices,
            target=CUTEDSL if CUTEDSL in getattr(target, "keys", ()) else "cuda",
            execution_backend=arguments.execution_backend or AUTO,
            compile_flags=self.compile_flags,
        )
        base = {str(getattr(key, "value", key)): value for key, value in (arguments.pass_configs or {}).items()}
        supply_type = self.profile_args.supply_type.name
        return evaluate_call(self.configs, self.elaborate, options, base, self._supply_inputs, supply_type)

    def make_declaration(self, evaluated: EvaluatedCall) -> Declaration:
        """Return everything besides the call that decides a measurement of the function."""
        profile = self.profile_args
        return Declaration(
            name=name_function(self.function.__module__, self.function.__qualname__),
            module=self.function.__module__,
            qualname=self.function.__qualname__,
            specialize=tuple(evaluated.problem),
            restored=() if evaluated.call.options.out_idx else tuple(evaluated.call.tensors),
            rtol=profile.rtol,
            atol=profile.atol,
            max_mismatched_ratio=profile.max_mismatched_ratio,
            skips_check=profile.skip_check,
            timeout_s=float(self.timeout_s),
            early_stop=self.early_stop,
            timing="graph" if profile.backend == "cudagraph" else "events",
            variables=find_deciding_variables(),
        )

    @property
    def _out_indices(self) -> tuple[int, ...]:
        out_idx = self.compile_args.out_idx
        return () if out_idx is None else (out_idx,) if isinstance(out_idx, int) else tuple(out_idx)

    def _supply_inputs(self, prim_func: Any) -> Sequence[Any] | None:
        """Return the tensors of ``supply_prog`` (``set_autotune_inputs`` sets it, too); ``None`` without one."""
        supply = self.profile_args.supply_prog
        if supply is None:
            return None
        parameters: Any = importlib.import_module("tilelang.engine.param").KernelParam
        buffers = dict(prim_func.buffer_map)
        count = len(prim_func.params)
        outputs = {index % count for index in self._out_indices}
        inputs = [
            parameters.from_buffer(buffers[value]) if value in buffers else parameters.from_var(value)
            for index, value in enumerate(prim_func.params)
            if index not in outputs
        ]
        return list(supply(inputs))


@dataclass
class TunedKernel:
    """A TileLang kernel and its config; latencies are in milliseconds, ``None`` if unknown.

    ``is_once`` says that the kernel is only for this call, because a CUDA graph is being captured.
    """

    kernel: Any
    config: Mapping[str, Any]
    latency: float | None = None
    ref_latency: float | None = None
    is_once: bool = False

    def publish_result(self) -> None:
        """Set the kernel's attributes that say how it was tuned, as TileLang does."""
        self.kernel.update_tuner_result(latency=self.latency, config=dict(self.config), ref_latency=self.ref_latency)


def decide_kernel(tuner_run: TunerRun, policy: Policy) -> TunedKernel | None:
    """Decide which kernel a call gets; ``None`` if TileLang tunes the call.

    With exact numerics, TileLang never tunes: its tuner might choose other bits. The first config is compiled instead.

    Raises:
        TuningFailed: no config compiles, runs and computes the right result.
        Exception: with exact numerics, the first config cannot be compiled.
    """
    try:
        call = TileLangCall(tuner_run, tuner_run.describe_call(), policy)
        if call.decide_kernel():
            return call.held
    except TuningFailed:
        raise
    except NotTunable as error:
        leave_to_framework(FRAMEWORK, tuner_run.name, str(error))
    except Exception as error:
        # If the call itself is wrong, TileLang raises the error when it tunes.
        fault = str(error).partition("\n")[0]
        reason = f"a call cannot be evaluated: {type(error).__name__}: {fault}"
        leave_to_framework(FRAMEWORK, tuner_run.name, reason)
    first = tuner_run.configs[0]
    return TunedKernel(copy.copy(tuner_run.compile(first)), first) if policy.is_exact else None


class TileLangCall(KeyedCall):
    """One tuning key's call.

    Attributes:
        held: the kernel that the application holds; a later winner replaces its content.
    """

    framework = FRAMEWORK

    def __init__(self, tuner_run: TunerRun, evaluated: EvaluatedCall, policy: Policy) -> None:
        declaration = tuner_run.make_declaration(evaluated)
        super().__init__(
            tuner_run.name, evaluated.problem, find_device_model(), declaration, tuple(evaluated.configs), policy
        )
        self.held: TunedKernel | None = None
        self.device = _find_current_device()
        self._tuner_run = tuner_run
        self._evaluated: EvaluatedCall = evaluated
        self._waits = policy.mode == "wait"
        self._loaded: dict[str, TunedKernel] = {}
        self._configs: dict[str, Mapping[str, Any]] = dict(evaluated.configs)
        self._admit_fixed_config()
        account.record_adopted(tuner_run.name)

    def decide_kernel(self) -> bool:
        """Decide which kernel the application gets; return ``False`` if TileLang has to tune.

        Raises:
            TuningFailed: the call waited, and its tuning ended without a winner.
            NotTunable: the call waited, and the winner cannot be used.
        """
        try:
            return self.decide_launch()
        finally:
            # Do not keep the application's tensors alive.
            self._evaluated = replace(self._evaluated, captured={})

    def _admit_fixed_config(self) -> None:
        """Add the config of a winners file to the call's configs, even if it is not in the function's list."""
        fixed = self.machine.fixed
        if fixed is None or fixed.config is None or fixed.config in self._configs:
            return
        config = make_unlisted_config(json.loads(fixed.config), self._configs.values())
        if config is None or set(config) - {*inspect.signature(self._tuner_run.function).parameters, PASS_CONFIGS}:
            self.refuse_fixed_config("is no config of the function")
        else:
            self._configs[fixed.config] = config

    def pack_call(self) -> tuple[Call, Mapping[str, bytes]]:
        """Return the call as data, and its programs and tensors."""
        return self._evaluated.pack_files()

    def await_tuning(self) -> Answer | None:
        """Wait until the key's tuning has ended; return the daemon's answer, ``None`` if no daemon runs.

        Raises:
            TuningFailed: it ended without a winner.
            NotTunable: the daemon did not accept the call.
        """
        answer = super().await_tuning()
        if answer is None or answer.config in self.machine.configs:
            return answer
        if not answer.message:
            raise NotTunable(NOT_ACCEPTED)
        raise TuningFailed(f"{FAILED} {answer.message}")

    def load_config(self, config: str, answer: Answer | None) -> bool:
        """Load a config from its artifact, or else compile it here; return whether it can be used.

        Raises:
            NotTunable: the call waited for this winner, and ``ref_prog`` contradicts its results.
        """
        try:
            tuned = self._make_kernel(config, answer)
        except Exception as error:
            # Any error makes a config unfit, because TileLang's own tuning also skips it, whatever it raises.
            self._log.info("%s cannot launch %s: %s", self._tuner_run.name, config, str(error).partition("\n")[0])
            return False
        if answer is not None and not _confirm_results(self._tuner_run, tuned):
            reason = f"the results of its winner {spell_values(json.loads(config))} are not those of ref_prog"
            self._log.warning("%s: %s", self._tuner_run.name, reason)
            if self._waits and self.held is None and self.machine.fixed is None:
                raise NotTunable(reason)
            return False
        tuned.publish_result()
        self._loaded[config] = tuned
        return True

    def launch_config(self, config: str, *, once: bool) -> None:
        """Give the application a config's kernel, as a new object or as new content of the object that it holds."""
        # While a graph is captured, the machine launches a config without loading it first.
        tuned = self._loaded.pop(config, None) or self._make_kernel(config, None)
        if self.held is None:
            self.held = tuned
            tuned.is_once = once
            tuned.kernel.__class__ = _define_counted_kernel(type(tuned.kernel))  # type: ignore[arg-type]
            tuned.kernel.launch_counter = self.counter
        else:
            exchange_kernel(self.held.kernel, tuned.kernel)

    def _make_kernel(self, config: str, answer: Answer | None) -> TunedKernel:
        chosen = self._configs[config]
        latency = answer.latency_us / 1000 if answer is not None and answer.latency_us is not None else None
        if answer is not None and answer.artifact is not None:
            try:
                kernel = load(answer.artifact)
                kernel.prim_func = self._evaluated.find_program(config)
                return TunedKernel(kernel, chosen, latency)
            except (OSError, Unsupported, RuntimeError) as error:
                self._log.info("%s cannot be loaded: %s", answer.artifact, error)
        # A copy, because its content may be exchanged, and TileLang's cache gives the original to others, too.
        return TunedKernel(copy.copy(self._tuner_run.compile(chosen)), chosen, latency)


def exchange_kernel(kernel: Any, better: Any) -> None:
    """Replace the content of a kernel that an application holds; its next call launches the better one."""
    for name in ("adapter", "artifact", "prim_func", "latency", "config", "ref_latency"):
        setattr(kernel, name, getattr(better, name, None))
    # Last, because calls in other threads read only this attribute; until it is set, they launch the old kernel.
    kernel.torch_function = better.torch_function


@cache
def _define_counted_kernel(kernel: type[Any]) -> type[Any]:
    """Return a subclass of a class of TileLang's kernels that counts launches."""

    class CountedKernel(kernel):  # type: ignore[misc]
        """A kernel that counts its launches."""

        launch_counter: LaunchCounter

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            self.launch_counter.launches += 1
            return self.torch_function(*args, **kwargs)

    return CountedKernel


def _confirm_results(tuner_run: TunerRun, tuned: TunedKernel) -> bool:
    """Return whether ``ref_prog`` confirms a kernel's results, and set its latency; true without a ``ref_prog``."""
    profile = tuner_run.profile_args
    if profile.ref_prog is None:
        return True
    profiler = tuned.kernel.get_profiler(tensor_supply_type=profile.supply_type)
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
            find_log(FRAMEWORK).warning("%s: %s", tuner_run.name, error)
            return False
    tuned.ref_latency = profiler.do_bench(
        profile.ref_prog, n_warmup=profile.warmup, n_repeat=profile.rep, input_tensors=inputs, backend=profile.backend
    )
    return True


def _find_current_device() -> int | None:
    torch = sys.modules.get("torch")
    return torch.cuda.current_device() if torch is not None and torch.cuda.is_available() else None
