"""A call's tuning: its record for the daemon, its winner as TileLang's kernel, and the exchange of a kernel in use."""

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
from ktuned_tilelang.call import EvaluatedCall, LeftAlone, evaluate
from ktuned_tilelang.call import Options as CompileOptions
from ktuned_tilelang.declaration import Declaration
from ktuned_tilelang.environment import deciding_variables
from ktuned_tilelang.execution import AUTO, CUTEDSL

Mode = Literal["wait", "background"]
Upgrade = Literal["once", "never", "always"]
WithoutDaemon = Literal["tilelang", "first"]

WITHOUT_DAEMON: Final = ("tilelang", "first")

COUNTS_EVERY_S: Final = 10.0
"""Counts of launches are left beside a new record, but no oftener than this."""

FAILED: Final = "Auto-tuning failed: No configuration successfully compiled and passed benchmarking/validation."
"""TileLang's own words."""

_log = logging.getLogger("ktuned.tilelang")


class TuningFailed(RuntimeError):
    """The tuning of a call that waits for it ended without a winner."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of an autotuned function besides TileLang's: see :func:`ktuned_tilelang.autotune`."""

    policy: Policy = field(default_factory=lambda: Policy("wait"))
    pin: str | None = None

    @classmethod
    def of(
        cls,
        mode: Mode,
        upgrade: Upgrade,
        without_daemon: WithoutDaemon,
        pin: str | None,
        numerics: str = TOLERANCE,
    ) -> Options:
        """Return the options of an application's words.

        Raises:
            ValueError: one has no such value.
        """
        if without_daemon not in WITHOUT_DAEMON:
            raise ValueError(f"without_daemon={without_daemon!r}: give one of {', '.join(map(repr, WITHOUT_DAEMON))}")
        return cls(Policy(mode, upgrade, without_daemon == "first", numerics), pin)


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
    timeout_s: float
    early_stop: float

    @property
    def name(self) -> str:
        """The function's module and name."""
        return f"{self.function.__module__}.{self.function.__qualname__}"

    def evaluate(self) -> EvaluatedCall:
        """Return the call as plain data.

        Raises:
            LeftAlone: another process cannot make it.
            Exception: what the function raised for each config.
        """
        arguments = self.compile_args
        target = arguments.target
        kind = getattr(getattr(target, "kind", None), "name", str(target))
        if kind != "cuda":
            raise LeftAlone(f"its target is {kind}, and ktuned runs TileLang's kernels on NVIDIA GPUs")
        options = CompileOptions(
            out_idx=self._out_idx,
            target=CUTEDSL if CUTEDSL in getattr(target, "keys", ()) else "cuda",
            execution_backend=arguments.execution_backend or AUTO,
            compile_flags=self.compile_flags,
        )
        base = {str(getattr(key, "value", key)): value for key, value in (arguments.pass_configs or {}).items()}
        supply_type = self.profile_args.supply_type.name
        return evaluate(self.configs, self.elaborate, options, base, self._supplied, supply_type)

    def declare(self, evaluated: EvaluatedCall) -> Declaration:
        """Return what decides a measurement of the function, besides a call."""
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
            variables=tuple(deciding_variables().items()),
        )

    @property
    def _out_idx(self) -> tuple[int, ...]:
        out_idx = self.compile_args.out_idx
        return () if out_idx is None else (out_idx,) if isinstance(out_idx, int) else tuple(out_idx)

    def _supplied(self, prim_func: Any) -> Sequence[Any] | None:
        """Return the tensors of ``supply_prog``, by which TileLang has those of ``set_autotune_inputs``, too."""
        supply = self.profile_args.supply_prog
        if supply is None:
            return None
        parameters: Any = importlib.import_module("tilelang.engine.param").KernelParam
        buffers = dict(prim_func.buffer_map)
        count = len(prim_func.params)
        left_out = {index % count for index in self._out_idx}
        wanted = [
            parameters.from_buffer(buffers[value]) if value in buffers else parameters.from_var(value)
            for index, value in enumerate(prim_func.params)
            if index not in left_out
        ]
        return list(supply(wanted))


@dataclass
class Found:
    """A kernel of TileLang's, its config, and latencies in milliseconds, where these are known."""

    kernel: Any
    config: Mapping[str, Any]
    latency: float | None = None
    ref_latency: float | None = None

    def tell_kernel(self) -> None:
        """Have the kernel say how it was tuned, as TileLang's kernels do."""
        self.kernel.update_tuner_result(latency=self.latency, config=dict(self.config), ref_latency=self.ref_latency)


def tune(task: Task, options: Options) -> KeyedCall | None:
    """Return a call whose kernel was decided on, or ``None`` if TileLang is to tune it.

    Raises:
        TuningFailed: no config compiles, runs and computes the right result.
    """
    try:
        call = KeyedCall(task, task.evaluate(), options)
        return call if call.decide() else None
    except TuningFailed:
        raise
    except LeftAlone as error:
        _leave_alone(task.name, str(error))
    except Exception as error:
        # Where the call is at fault, TileLang says so itself.
        fault = str(error).partition("\n")[0]
        _leave_alone(task.name, f"a call cannot be evaluated: {type(error).__name__}: {fault}")
    return None


def _leave_alone(name: str, reason: str) -> None:
    account.record_left_alone(name, reason)
    _log.info("%s is left to TileLang: %s", name, reason)


class KeyedCall:
    """One tuning key's call: carries out what its machine decides (:class:`ktuned.dropin.Host`).

    Attributes:
        found: the kernel that the application has; its content is exchanged when a winner comes later.
        is_once: whether it is for this call alone, because a CUDA graph is being captured.
    """

    def __init__(self, task: Task, evaluated: EvaluatedCall, options: Options) -> None:
        self.machine = LaunchMachine(options.policy, tuple(evaluated.configs))
        self.found: Found | None = None
        self.is_once = False
        self._task = task
        self._evaluated: EvaluatedCall = evaluated
        self._mode = options.policy.mode
        self._declaration = replace(task.declare(evaluated), numerics=options.policy.numerics)
        self._key = CallKey(self._declaration.identity, evaluated.problem, device_model() or "")
        self._counter = count_launches(self._key.identity, self._key.problem, self._key.device)
        self._link = daemon_link(options.pin)
        self._name = f"{task.name} {canonical(dict(self._key.problem))}"
        self._device = _current_device()
        self._loaded: dict[str, Found] = {}
        self._answers: dict[str, Answer] = {}
        account.record_adopted(task.name)

    def decide(self) -> bool:
        """Decide on the kernel that the application gets; return whether it is not left to TileLang.

        Raises:
            TuningFailed: it was waited for in vain.
            LeftAlone: it was waited for, and cannot be used.
        """
        is_captured = is_capturing()
        try:
            carry_out(self.machine, Called(is_captured), self)
        finally:
            # Tensors are the application's.
            self._evaluated = replace(self._evaluated, captured={})
        if not is_captured:
            leave_launch_counts(at_most_every_s=COUNTS_EVERY_S)
        return self.machine.standing is not Standing.FRAMEWORK

    # The host of a machine

    def ask_daemon(self) -> Answer | None:
        """Return what the daemon knows."""
        answer = self._noted(self._link.ask_about(self._key))
        if answer is not None and answer.is_final and not answer.is_open:
            account.record_key(self._name, TUNED)
        return answer

    def record_call(self) -> str:
        """Leave the call in the spool."""
        try:
            leave_record(spool_directory(home_directory()), self._record())
        except OSError as error:
            return str(error)
        account.record_key(self._name, RECORDED)
        return ""

    def await_tuning(self) -> Answer | None:
        """Return what the daemon knows when the key's tuning has ended.

        Raises:
            TuningFailed: it ended without a winner. Programs read the kernel's latency at once, so that no other
                config will do.
            LeftAlone: the daemon has not taken the call in.
        """
        answer = self._noted(self._link.await_tuning(self._key))
        if answer is None:
            return None
        if answer.config not in self._evaluated.configs:
            if not answer.message:
                raise LeftAlone("the daemon has not taken its call in; `ktuned status` may say why")
            self._note_failure(answer)
            raise TuningFailed(f"{FAILED} {answer.message}")
        if answer.is_final:
            account.record_key(self._name, TUNED)
        return answer

    def follow_key(self) -> None:
        """Have later answers reported."""
        _followed.add(self)
        self._link.follow_key(self._key, self._on_answer)

    def load_config(self, config: str, artifact: str | None) -> bool:
        """Load a config from its artifact, else compile it here.

        Raises:
            LeftAlone: it is a winner that was waited for, and ``ref_prog`` computes something else.
        """
        try:
            found = self._load(config, artifact)
        except Exception as error:
            # TileLang's own tuning passes over a config that raises anything.
            _log.info("%s cannot launch %s: %s", self._task.name, config, str(error).partition("\n")[0])
            return False
        if config in self._answers and not _is_confirmed(self._task, found):
            reason = f"its winner {config} does not compute what ref_prog does"
            _log.warning("%s: %s", self._task.name, reason)
            if self._mode == "wait" and self.found is None:
                raise LeftAlone(reason)
            return False
        found.tell_kernel()
        self._loaded[config] = found
        return True

    def launch_config(self, config: str, *, once: bool) -> None:
        """Give the application a config's kernel: now, or in the place of the one that it has."""
        # While a graph is captured it was not loaded before.
        found = self._loaded.pop(config, None) or self._load(config, None)
        self.is_once = once
        if self.found is None:
            self.found = found
            found.kernel.__class__ = _counting_class(type(found.kernel))  # type: ignore[arg-type]
            found.kernel.launch_counter = self._counter
        else:
            exchange(self.found.kernel, found.kernel)

    def let_framework_tune(self, reason: str) -> None:
        """Leave the key to TileLang."""
        _leave_alone(self._name, reason)

    def forked(self) -> None:
        """Follow again in a forked child, which has no thread that follows."""
        carry_out(self.machine, Forked(), self)

    def _noted(self, answer: Answer | None) -> Answer | None:
        if answer is not None and answer.config is not None:
            self._answers[answer.config] = answer
        return answer

    def _on_answer(self, answer: Answer) -> bool:
        self._noted(answer)
        if answer.is_final:
            account.record_key(self._name, TUNED)
        else:
            self._note_failure(answer)
        allow_captures()
        with _on_device(self._device):
            carry_out(self.machine, Followed(answer), self)
        if not self.machine.is_followed:
            _followed.discard(self)
        return self.machine.is_followed

    def _note_failure(self, answer: Answer) -> None:
        reason = (answer.message or "its tuning ended without a winner").partition("\n")[0]
        _log.warning("%s is not tuned: %s", self._task.name, reason)
        account.record_key(self._name, f"not tuned: {reason}")

    def _load(self, config: str, artifact: str | None) -> Found:
        chosen = self._evaluated.configs[config]
        answer = self._answers.get(config)
        latency = answer.latency_us / 1000 if answer is not None and answer.latency_us is not None else None
        if artifact is not None:
            try:
                kernel = load(artifact)
                kernel.prim_func = self._evaluated.program(config)
                return Found(kernel, chosen, latency)
            except (OSError, Unsupported, RuntimeError) as error:
                _log.info("%s cannot be loaded: %s", artifact, error)
        # A copy: TileLang keeps the kernel that it compiled, and others may get it who want this very config.
        return Found(copy.copy(self._task.compile(chosen)), chosen, latency)

    def _record(self) -> CallRecord:
        call, files = self._evaluated.files()
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
            device=self._key.device,
            configs=tuple(json.loads(text) for text in self._evaluated.configs),
        )


_followed: set[KeyedCall] = set()
"""Calls whose winners may still come. A kernel in use does not keep its call, which has the application's tensors."""


def _forked() -> None:
    for call in list(_followed):
        call.forked()


os.register_at_fork(after_in_child=_forked)


def exchange(kernel: Any, better: Any) -> None:
    """Put another kernel in the place of one that an application holds; its next call launches that."""
    for name in ("adapter", "artifact", "prim_func", "latency", "config", "ref_latency"):
        setattr(kernel, name, getattr(better, name, None))
    # At the end: until then the old one is called.
    kernel.torch_function = better.torch_function


@cache
def _counting_class(kernel: type[Any]) -> type[Any]:
    """Return a class of TileLang's kernels that count their launches."""

    class CountedKernel(kernel):  # type: ignore[misc]
        """A kernel of TileLang's that counts its launches."""

        launch_counter: LaunchCounter

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            self.launch_counter.launches += 1
            return self.torch_function(*args, **kwargs)

    return CountedKernel


def _is_confirmed(task: Task, found: Found) -> bool:
    """Return whether ``ref_prog`` confirms a kernel's results, and measure the reference; true without one."""
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


def _current_device() -> int | None:
    torch = sys.modules.get("torch")
    return torch.cuda.current_device() if torch is not None and torch.cuda.is_available() else None


def _on_device(index: int | None) -> contextlib.AbstractContextManager[Any]:
    """Make a GPU torch's current one in a thread of its own, whose first is the first otherwise."""
    if index is None:
        return contextlib.nullcontext()
    torch: Any = sys.modules["torch"]
    device: contextlib.AbstractContextManager[Any] = torch.cuda.device(index)
    return device
