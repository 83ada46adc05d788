"""Decides which kernel a call gets, records the call for the daemon, and exchanges a kernel in use for a later winner.

An application holds a kernel object of TileLang's, maybe for ever. A winner that comes later therefore replaces the
content of that object (:func:`exchange_kernel`), in the thread that follows the daemon. Its next call launches the
winner; a call that runs at that moment ends with the kernel that it began with.

A call that waits for a daemon gets a winner or an error (:class:`TuningFailed`), never just any config: programs read
the kernel's latency at once, as they do with TileLang. Without a daemon TileLang tunes, unless the first config was
asked for.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final, Literal

from ktuned.dropin import (
    RECORDED,
    TUNED,
    Answer,
    Called,
    CallKey,
    CallRecord,
    Followed,
    Forked,
    LaunchCounter,
    LaunchMachine,
    Policy,
    Standing,
    account,
    allow_captures,
    carry_out,
    count_launches,
    daemon_link,
    device_model,
    home_directory,
    is_capturing,
    leave_launch_counts,
    leave_record,
    name_in_library,
    spool_directory,
)
from ktuned.model import TOLERANCE, Unsupported, canonical
from ktuned_tilelang.artifact import load
from ktuned_tilelang.call import EvaluatedCall, NotTunable, evaluate_call
from ktuned_tilelang.call import Options as CompileOptions
from ktuned_tilelang.declaration import Declaration
from ktuned_tilelang.environment import find_deciding_variables
from ktuned_tilelang.execution import AUTO, CUTEDSL

Mode = Literal["wait", "background"]
Upgrade = Literal["once", "never", "always"]
WithoutDaemon = Literal["tilelang", "first"]

WITHOUT_DAEMON: Final = ("tilelang", "first")

COUNTS_EVERY_S: Final = 10.0
"""Launch counts are written at most this often, and only when a call is decided."""

FAILED: Final = "Auto-tuning failed: No configuration successfully compiled and passed benchmarking/validation."
"""TileLang's own message, which programs may look for."""

_log = logging.getLogger("ktuned.tilelang")


class TuningFailed(RuntimeError):
    """The tuning of a call that waits for it ended without a winner."""


@dataclass(frozen=True, slots=True)
class Options:
    """ktuned's options of an autotuned function: see :func:`ktuned_tilelang.autotune`."""

    policy: Policy = field(default_factory=lambda: Policy("wait"))
    pin: str | None = None

    @classmethod
    def from_choices(
        cls,
        mode: Mode,
        upgrade: Upgrade,
        without_daemon: WithoutDaemon,
        pin: str | None,
        numerics: str = TOLERANCE,
    ) -> Options:
        """Return the options for the arguments of :func:`ktuned_tilelang.autotune`.

        Raises:
            ValueError: an option has no such value.
        """
        if without_daemon not in WITHOUT_DAEMON:
            raise ValueError(f"without_daemon={without_daemon!r}: give one of {', '.join(map(repr, WITHOUT_DAEMON))}")
        return cls(Policy(mode, upgrade, without_daemon == "first", numerics), pin)


@dataclass(frozen=True)
class Task:
    """A call to tune, in TileLang's terms.

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
            out_idx=self._listed_out_idx,
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
            variables=tuple(find_deciding_variables().items()),
        )

    @property
    def _listed_out_idx(self) -> tuple[int, ...]:
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
        left_out = {index % count for index in self._listed_out_idx}
        wanted = [
            parameters.from_buffer(buffers[value]) if value in buffers else parameters.from_var(value)
            for index, value in enumerate(prim_func.params)
            if index not in left_out
        ]
        return list(supply(wanted))


@dataclass
class TunedKernel:
    """A kernel of TileLang's and its config; latencies are in milliseconds, ``None`` if unknown."""

    kernel: Any
    config: Mapping[str, Any]
    latency: float | None = None
    ref_latency: float | None = None

    def publish_result(self) -> None:
        """Set the kernel's attributes that say how it was tuned, as TileLang does."""
        self.kernel.update_tuner_result(latency=self.latency, config=dict(self.config), ref_latency=self.ref_latency)


def decide_kernel(task: Task, options: Options) -> KeyedCall | None:
    """Decide which kernel a call gets; ``None`` if TileLang tunes the call.

    Raises:
        TuningFailed: no config compiles, runs and computes the right result.
    """
    try:
        call = KeyedCall(task, task.describe_call(), options)
        return call if call.decide_kernel() else None
    except TuningFailed:
        raise
    except NotTunable as error:
        _leave_alone(task.name, str(error))
    except Exception as error:
        # If the call itself is wrong, TileLang will raise the error.
        fault = str(error).partition("\n")[0]
        _leave_alone(task.name, f"a call cannot be evaluated: {type(error).__name__}: {fault}")
    return None


def _leave_alone(name: str, reason: str) -> None:
    account.record_left_alone(name, reason)
    _log.info("%s is left to TileLang: %s", name, reason)


class KeyedCall:
    """One tuning key's call: carries out what its machine decides (:class:`ktuned.dropin.Host`).

    Attributes:
        found: the kernel that the application holds; a later winner replaces its content.
        is_once: whether the kernel is for this call alone, because a CUDA graph is being captured.
    """

    def __init__(self, task: Task, evaluated: EvaluatedCall, options: Options) -> None:
        self.machine = LaunchMachine(options.policy, tuple(evaluated.configs))
        self.found: TunedKernel | None = None
        self.is_once = False
        self._task = task
        self._evaluated: EvaluatedCall = evaluated
        self._mode = options.policy.mode
        self._declaration = replace(task.make_declaration(evaluated), numerics=options.policy.numerics)
        self._key = CallKey(self._declaration.identity, evaluated.problem, device_model())
        self._counter = count_launches(self._key)
        self._link = daemon_link(options.pin)
        self._name = f"{task.name} {canonical(dict(self._key.problem))}"
        self._device = _find_current_device()
        self._loaded: dict[str, TunedKernel] = {}
        self._answers: dict[str, Answer] = {}
        account.record_adopted(task.name)

    def decide_kernel(self) -> bool:
        """Decide which kernel the application gets; return whether there is one, so that TileLang need not tune.

        Raises:
            TuningFailed: the call waited, and its tuning ended without a winner.
            NotTunable: the call waited, and the winner cannot be used.
        """
        is_captured = is_capturing()
        try:
            carry_out(self.machine, Called(is_captured), self)
        finally:
            # Do not keep the application's tensors alive.
            self._evaluated = replace(self._evaluated, captured={})
        if not is_captured:
            leave_launch_counts(at_most_every_s=COUNTS_EVERY_S)
        return self.machine.standing is not Standing.FRAMEWORK

    # What the machine orders (ktuned.dropin.Host)

    def ask_daemon(self) -> Answer | None:
        """Return what the daemon knows about the key."""
        answer = self._keep_answer(self._link.ask_about(self._key))
        if answer is not None and answer.is_final and not answer.is_open:
            account.record_key(self._name, TUNED)
        return answer

    def record_call(self) -> str:
        """Write the call to the spool; return why that is impossible, else an empty string."""
        try:
            leave_record(spool_directory(home_directory()), self._make_record())
        except OSError as error:
            return str(error)
        account.record_key(self._name, RECORDED)
        return ""

    def await_tuning(self) -> Answer | None:
        """Wait until the key's tuning has ended; return the daemon's answer, ``None`` if no daemon runs.

        Raises:
            TuningFailed: it ended without a winner.
            NotTunable: the daemon did not accept the call.
        """
        answer = self._keep_answer(self._link.await_tuning(self._key))
        if answer is None:
            return None
        if answer.config not in self._evaluated.configs:
            if not answer.message:
                raise NotTunable("the daemon did not accept its call; `ktuned status` may say why")
            self._report_failure(answer)
            raise TuningFailed(f"{FAILED} {answer.message}")
        if answer.is_final:
            account.record_key(self._name, TUNED)
        return answer

    def follow_key(self) -> None:
        """Have the daemon report later answers."""
        _followed.add(self)
        self._link.follow_key(self._key, self._on_answer)

    def load_config(self, config: str, artifact: str | None) -> bool:
        """Load a config from its artifact, or else compile it here; return whether it can be used.

        Raises:
            NotTunable: the call waited for this winner, and ``ref_prog`` contradicts its results.
        """
        try:
            tuned = self._make_kernel(config, artifact)
        except Exception as error:
            # TileLang's own tuning skips a config, whatever it raises.
            _log.info("%s cannot launch %s: %s", self._task.name, config, str(error).partition("\n")[0])
            return False
        if config in self._answers and not _confirm_results(self._task, tuned):
            reason = f"the results of its winner {config} are not those of ref_prog"
            _log.warning("%s: %s", self._task.name, reason)
            if self._mode == "wait" and self.found is None:
                raise NotTunable(reason)
            return False
        tuned.publish_result()
        self._loaded[config] = tuned
        return True

    def launch_config(self, config: str, *, once: bool) -> None:
        """Give the application a config's kernel: a new object, or in place of the content of the one it holds."""
        # While a graph is captured the machine launches without a load.
        tuned = self._loaded.pop(config, None) or self._make_kernel(config, None)
        self.is_once = once
        if self.found is None:
            self.found = tuned
            tuned.kernel.__class__ = _define_counted_kernel(type(tuned.kernel))  # type: ignore[arg-type]
            tuned.kernel.launch_counter = self._counter
        else:
            exchange_kernel(self.found.kernel, tuned.kernel)

    def let_framework_tune(self, reason: str) -> None:
        """Leave the key to TileLang."""
        _leave_alone(self._name, reason)

    def restart_after_fork(self) -> None:
        """Follow the daemon again in a forked child, which lost the thread that did so."""
        carry_out(self.machine, Forked(), self)

    def _keep_answer(self, answer: Answer | None) -> Answer | None:
        if answer is not None and answer.config is not None:
            self._answers[answer.config] = answer
        return answer

    def _on_answer(self, answer: Answer) -> bool:
        self._keep_answer(answer)
        if answer.is_final:
            account.record_key(self._name, TUNED)
        else:
            self._report_failure(answer)
        allow_captures()
        with _use_device(self._device):
            carry_out(self.machine, Followed(answer), self)
        if not self.machine.is_followed:
            _followed.discard(self)
        return self.machine.is_followed

    def _report_failure(self, answer: Answer) -> None:
        reason = (answer.message or "its tuning ended without a winner").partition("\n")[0]
        _log.warning("%s is not tuned: %s", self._task.name, reason)
        account.record_key(self._name, f"not tuned: {reason}")

    def _make_kernel(self, config: str, artifact: str | None) -> TunedKernel:
        chosen = self._evaluated.configs[config]
        answer = self._answers.get(config)
        latency = answer.latency_us / 1000 if answer is not None and answer.latency_us is not None else None
        if artifact is not None:
            try:
                kernel = load(artifact)
                kernel.prim_func = self._evaluated.find_program(config)
                return TunedKernel(kernel, chosen, latency)
            except (OSError, Unsupported, RuntimeError) as error:
                _log.info("%s cannot be loaded: %s", artifact, error)
        # A copy, because its content may be exchanged: TileLang caches the kernel for all who ask for this config.
        return TunedKernel(copy.copy(self._task.compile(chosen)), chosen, latency)

    def _make_record(self) -> CallRecord:
        call, files = self._evaluated.pack_files()
        declaration = self._declaration
        package, release, function = name_in_library(declaration.module, declaration.qualname)
        return CallRecord(
            tool="tilelang",
            package=package,
            release=release,
            function=function,
            identity=self._key.identity,
            declaration=declaration.to_plain(),
            problem=dict(self._key.problem),
            call=call.to_json(),
            files=files,
            python=sys.executable,
            variables=dict(declaration.variables),
            device=self._key.device or "",
            configs=tuple(json.loads(text) for text in self._evaluated.configs),
        )


_followed: set[KeyedCall] = set()
"""Calls whose winners may still come; nothing else keeps them alive."""


def _restart_calls_after_fork() -> None:
    for call in list(_followed):
        call.restart_after_fork()


os.register_at_fork(after_in_child=_restart_calls_after_fork)


def exchange_kernel(kernel: Any, better: Any) -> None:
    """Replace the content of a kernel that an application holds; its next call launches the better one."""
    for name in ("adapter", "artifact", "prim_func", "latency", "config", "ref_latency"):
        setattr(kernel, name, getattr(better, name, None))
    # Last, because a call in another thread reads this alone: until then it launches the old kernel.
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


def _confirm_results(task: Task, found: TunedKernel) -> bool:
    """Return whether ``ref_prog`` confirms a kernel's results, and set its latency; true without a ``ref_prog``."""
    profile = task.profile_args
    if profile.ref_prog is None:
        return True
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
            return False
    found.ref_latency = profiler.do_bench(
        profile.ref_prog, n_warmup=profile.warmup, n_repeat=profile.rep, input_tensors=inputs, backend=profile.backend
    )
    return True


def _find_current_device() -> int | None:
    torch = sys.modules.get("torch")
    return torch.cuda.current_device() if torch is not None and torch.cuda.is_available() else None


def _use_device(index: int | None) -> contextlib.AbstractContextManager[Any]:
    """Make a GPU torch's current device; a new thread begins with GPU 0, whatever the application's thread uses."""
    if index is None:
        return contextlib.nullcontext()
    torch: Any = sys.modules["torch"]
    device: contextlib.AbstractContextManager[Any] = torch.cuda.device(index)
    return device
