"""The drop-in for TileLang's autotuner: a call gets the best kernel known so far; the daemon looks for a better one.

Both of TileLang's ways to tune end in ``AutoTuner.run``: ``tilelang.autotune`` makes such a tuner for each call, and
programs make their own. So ``run`` is patched, in the class and once for a process. Instances and subclasses may be
made at any time and anywhere, and a subclass's own ``run`` still does its part before it calls the base's.

An instance is adopted if :func:`autotune` or :func:`make_tuner_class` made it, or if the process runs under
``ktuned run``; every other instance behaves as in plain TileLang. No error of ours reaches the application: a call that
cannot be evaluated is left to TileLang, with the reason in the log and in the account that ``ktuned run`` prints.
"""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache, wraps
from typing import Any, Literal

from ktuned.dropin import (
    Mode,
    Numerics,
    Policy,
    Upgrade,
    WinnersFile,
    account,
    adopt_subclasses,
    choose_policy,
    explain_bypass,
)
from ktuned.model import TOLERANCE
from ktuned_tilelang.artifact import check_version
from ktuned_tilelang.call import PASS_CONFIGS, list_configs
from ktuned_tilelang.environment import TUNER_MODULE
from ktuned_tilelang.keyed_call import TunedKernel, TunerRun, decide_kernel

WithoutDaemon = Literal["tilelang", "first"]

MODULE = "tilelang.autotuner.tuner"
"""The module that defines TileLang's tuners."""

_POLICY_ATTRIBUTE = "_ktuned_policy"
_FUNCTION_ATTRIBUTE = "_ktuned_function"
"""Attribute of a tuner: the autotuned function that made the tuner for one call."""

_ONCE_ATTRIBUTE = "_ktuned_once"
"""Attribute of an autotuned function: the kernel that it must not keep for later calls."""

_process_policy: Policy | None = None
"""The policy of ``ktuned run``; it holds for every tuner of this process without a policy of its own."""


def autotune(
    func: Any = None,
    *,
    configs: Any,
    warmup: int = 25,
    rep: int = 100,
    timeout: int = 100,
    supply_type: Any = None,
    ref_prog: Callable[..., Any] | None = None,
    supply_prog: Callable[..., Any] | None = None,
    rtol: float = 1e-2,
    atol: float = 1e-2,
    max_mismatched_ratio: float = 0.01,
    skip_check: bool = False,
    manual_check_prog: Callable[..., Any] | None = None,
    cache_input_tensors: bool = False,
    do_not_specialize: Sequence[str] | None = None,
    early_stop: bool = False,
    early_stop_factor: float = 2.0,
    mode: Mode = "wait",
    upgrade: Upgrade = "once",
    without_daemon: WithoutDaemon = "tilelang",
    numerics: Numerics = "tolerance",
    winners: str | os.PathLike[str] | None = None,
) -> Callable[[Any], Any]:
    """Tune a ``@tilelang.jit`` function as ``tilelang.autotune`` does, but in ktuned's daemon.

    The arguments up to ``early_stop_factor`` are TileLang's; ``configs`` may also be a dict of axes. The others are:

    - ``mode``: with ``"wait"`` the first call of a key waits for its winner, as with TileLang. With ``"background"`` it
      gets the best kernel known, or else the first config's; the winner later takes its place in the same object.
    - ``upgrade``: how often a key's kernel may be replaced in a process: ``"once"``, ``"never"``, ``"always"``.
    - ``without_daemon``: if no daemon runs, ``"tilelang"`` tunes in the call; ``"first"`` compiles the first config.
      The call is recorded for a later daemon in both cases.
    - ``numerics``: with ``"exact"`` a winner must reproduce the bits of the first config, and no other is launched.
    - ``winners``: a file of ``ktuned export``, or a directory of such files, that fixes the config of each key. No
      daemon is asked, nothing is recorded, and no kernel is replaced; a key that the file lacks gets its first config.

    Raises:
        ValueError: an option has a value that it cannot take, or the function is given without options.
        WinnersError: a file of ``winners`` cannot be read.
        ImportError: TileLang is not installed, or this plugin does not know its version.

    Example:
        >>> @autotune(configs=[{"block": 128}, {"block": 256}])
        ... @tilelang.jit(out_idx=[-1])
        ... def scale(size, block=128): ...
    """
    policy = Policy.from_choices(
        "tilelang", mode=mode, upgrade=upgrade, without_daemon=without_daemon, numerics=numerics, winners=winners
    )
    tuner = import_tuner_module()
    adopt_classes(tuner)
    supplied = {} if supply_type is None else {"supply_type": supply_type}
    decorate = tuner.autotune(
        func,
        configs=configs,
        warmup=warmup,
        rep=rep,
        timeout=timeout,
        ref_prog=ref_prog,
        supply_prog=supply_prog,
        rtol=rtol,
        atol=atol,
        max_mismatched_ratio=max_mismatched_ratio,
        skip_check=skip_check,
        manual_check_prog=manual_check_prog,
        cache_input_tensors=cache_input_tensors,
        do_not_specialize=do_not_specialize,
        early_stop=early_stop,
        early_stop_factor=early_stop_factor,
        **supplied,
    )

    def adopt_function(function: Any) -> Any:
        autotuned = decorate(function)
        autotuned.__dict__[_POLICY_ATTRIBUTE] = policy
        return autotuned

    return adopt_function


def adopt_process(tuner: Any, mode: Mode, numerics: str = "tolerance", winners: WinnersFile | None = None) -> None:
    """Adopt all tuners of this process, for ``ktuned run``; ``tuner`` is TileLang's module."""
    global _process_policy
    check_version(importlib.import_module("tilelang").__version__)
    _process_policy = Policy(mode, numerics=numerics, winners=winners)
    adopt_classes(tuner)


def _find_policy(tuner: Any) -> Policy | None:
    """Return the policy of a tuner; ``None`` if it is not adopted."""
    return choose_policy(getattr(tuner, _POLICY_ATTRIBUTE, None), _process_policy)


def explain_non_adoption(kind: type[Any]) -> str:
    """Return why a subclass's calls do not reach our ``run``; empty if they do."""
    reasons = (
        explain_bypass(kind, "TileLang", method, ("run", "get_tunner", method))
        for method in ("run", "__call__", "get_tunner")
    )
    return next(filter(None, reasons), "")


def import_tuner_module() -> Any:
    """Import and return the module of TileLang's tuners.

    Raises:
        ImportError: TileLang is not installed, or this plugin does not know its version.
    """
    check_version(importlib.import_module("tilelang").__version__)
    return importlib.import_module(TUNER_MODULE)


@cache
def make_tuner_class() -> type[Any]:
    """Return ``AutoTuner``, a subclass of TileLang's whose instances are adopted."""
    tuner = import_tuner_module()
    adopt_classes(tuner)
    base: type[Any] = tuner.AutoTuner

    class AutoTuner(base):  # type: ignore[misc]
        """TileLang's tuner of a function; ktuned's daemon does the tuning."""

        _ktuned_policy = Policy("wait")

        def set_tuning_args(
            self,
            mode: Mode = "wait",
            upgrade: Upgrade = "once",
            without_daemon: WithoutDaemon = "tilelang",
            numerics: str = TOLERANCE,
            winners: str | os.PathLike[str] | None = None,
        ) -> Any:
            """Set ktuned's options, which :func:`autotune` describes."""
            self._ktuned_policy = Policy.from_choices(
                "tilelang",
                mode=mode,
                upgrade=upgrade,
                without_daemon=without_daemon,
                numerics=numerics,
                winners=winners,
            )
            return self

    return AutoTuner


# The classes


@cache
def adopt_classes(tuner: Any) -> None:
    """Patch TileLang's two classes and all their present and future subclasses; a second call does nothing."""
    tuner.AutoTuner.run = _wrap_run(tuner.AutoTuner.run, importlib.import_module("tilelang.autotuner.param"))
    tuner.AutoTuneImpl.__call__ = _wrap_call(tuner.AutoTuneImpl.__call__)
    for base in (tuner.AutoTuner, tuner.AutoTuneImpl):
        adopt_subclasses(base, _adopt_methods)
    _adopt_methods(tuner.AutoTuneImpl)


def _adopt_methods(cls: type[Any]) -> None:
    """Wrap a class's own ``get_tunner``, and make own methods that bypass ours report this when they are called."""
    reason = explain_non_adoption(cls)
    if "get_tunner" in vars(cls):
        cls.get_tunner = _wrap_get_tunner(vars(cls)["get_tunner"])
    if reason:
        for name in {"run", "__call__"} & vars(cls).keys():
            setattr(cls, name, _wrap_to_report(vars(cls)[name], f"{cls.__module__}.{cls.__qualname__}", reason))


def _wrap_run(run: Callable[..., Any], param: Any) -> Callable[..., Any]:
    """Return a ``run`` that returns the kernel we decided on, or else lets TileLang tune."""
    signature = inspect.signature(run)

    @wraps(run)
    def run_or_serve(self: Any, *args: Any, **kwargs: Any) -> Any:
        policy = _find_policy(self)
        if policy is not None:
            bound = signature.bind(self, *args, **kwargs)
            bound.apply_defaults()
            tuned = _decide_call(self, policy, bound.arguments)
            if tuned is not None:
                return _make_result(param.AutotuneResult, tuned)
        return run(self, *args, **kwargs)

    return run_or_serve


def _wrap_get_tunner(get_tunner: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``get_tunner`` whose tuner knows the autotuned function that it was made for."""

    @wraps(get_tunner)
    def make_marked_tuner(self: Any) -> Any:
        tuner = get_tunner(self)
        tuner.__dict__[_FUNCTION_ATTRIBUTE] = self
        if _POLICY_ATTRIBUTE in self.__dict__:
            tuner.__dict__[_POLICY_ATTRIBUTE] = self.__dict__[_POLICY_ATTRIBUTE]
        return tuner

    return make_marked_tuner


def _wrap_call(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``__call__`` that afterwards removes a kernel for a single call from TileLang's cache."""

    @wraps(call)
    def call_and_forget(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return call(self, *args, **kwargs)
        finally:
            once = self.__dict__.pop(_ONCE_ATTRIBUTE, None)
            for key, (kernel, _) in list(self._tuner_cache.items()) if once is not None else ():
                if kernel is once:
                    del self._tuner_cache[key]

    return call_and_forget


def _wrap_to_report(method: Callable[..., Any], name: str, reason: str) -> Callable[..., Any]:
    """Return a method that reports on each call that ktuned does not serve it, with the reason."""

    @wraps(method)
    def report_and_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _find_policy(self) is not None:
            account.record_left_alone(name, reason)
        return method(self, *args, **kwargs)

    return report_and_call


# One call


def _decide_call(tuner: Any, policy: Policy, arguments: Mapping[str, Any]) -> TunedKernel | None:
    """Return the kernel that a call gets, or ``None`` if TileLang tunes it.

    A faulty call is left to TileLang, which raises the same error as without ktuned.
    """
    early_stop = arguments["early_stop_factor"] if arguments["early_stop"] else 0.0
    args, kwargs = tuner._kernel_parameters or ((), ())
    tuner.configs = configs = list_configs(tuner.configs, args, dict(kwargs))
    if not configs or _gives_knob(tuner, args, dict(kwargs)) or _has_unused_keys(tuner.fn, configs):
        return None
    if early_stop and early_stop < 1.0:
        return None
    compile_function, elaborate = tuner._ensure_jit_functions()

    def compile_config(config: Mapping[str, Any]) -> Any:
        named = {name: value for name, value in config.items() if name != PASS_CONFIGS}
        own = {"__pass_configs__": config[PASS_CONFIGS]} if config.get(PASS_CONFIGS) else {}
        return compile_function(**named, **own)

    function = tuner.__dict__.get(_FUNCTION_ATTRIBUTE)
    tuner_run = TunerRun(
        function=getattr(tuner.fn, "orig_func", tuner.fn),
        configs=configs,
        elaborate=elaborate,
        compile=compile_config,
        compile_args=tuner.compile_args,
        compile_flags=_read_compile_flags(function),
        profile_args=tuner.profile_args,
        timeout_s=arguments["timeout"],
        early_stop=early_stop,
    )
    tuned = decide_kernel(tuner_run, policy)
    if tuned is not None and tuned.is_once and function is not None:
        function.__dict__[_ONCE_ATTRIBUTE] = tuned.kernel
    return tuned


def _gives_knob(tuner: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether the call itself passes a value for a knob; then nothing is tuned."""
    if tuner._kernel_parameters is None:
        return False
    names = list(tuner._function_parameters or ())
    knobs = [name for name in tuner.configs[0] if name in names]
    return any(name in kwargs or names.index(name) < len(args) for name in knobs)


def _has_unused_keys(function: Any, configs: Sequence[Mapping[str, Any]]) -> bool:
    names = {*inspect.signature(getattr(function, "orig_func", function)).parameters, PASS_CONFIGS}
    return any(set(config) - names for config in configs)


def _read_compile_flags(function: Any) -> tuple[str, ...]:
    flags = getattr(getattr(function, "jit_impl", None), "compile_flags", None)
    return () if not flags else (flags,) if isinstance(flags, str) else tuple(flags)


def _make_result(kind: Any, tuned: TunedKernel) -> Any:
    return kind(
        latency=tuned.latency,
        config=dict(tuned.config),
        ref_latency=tuned.ref_latency,
        libcode=tuned.kernel.get_kernel_source(),
        func=tuned.kernel.prim_func,
        kernel=tuned.kernel,
    )
