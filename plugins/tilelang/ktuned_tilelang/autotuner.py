"""The drop-in for TileLang's autotuner: a call gets the best kernel known now, and the daemon finds a better one.

The place to stand is ``AutoTuner.run``, by which both of TileLang's ways to tune go: ``tilelang.autotune`` makes such a
tuner for each call, and programs make their own. It is changed in the class, once for a process: instances and
subclasses are seen wherever, and whenever, they were made, and what a subclass does before it calls ``run`` of its base
is done before. An instance is adopted if :func:`autotune` or :func:`tuner_class` made it, or if the process runs under
``ktuned run``; all others behave as before.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache, wraps
from typing import Any, Final, Literal

from ktuned.dropin import account
from ktuned.model import TOLERANCE
from ktuned_tilelang.artifact import check_version
from ktuned_tilelang.call import PASS_CONFIGS, listed
from ktuned_tilelang.tuning import KeyedCall, Mode, Options, Task, Upgrade, WithoutDaemon, tune

MODULE: Final = "tilelang.autotuner.tuner"
"""The module that defines TileLang's tuners; all others import them from there."""

_OPTIONS = "_ktuned_options"
_FUNCTION = "_ktuned_function"
"""The autotuned function that has made a tuner for one call."""

_ONCE = "_ktuned_once"
"""A kernel that an autotuned function must not keep for later calls."""

_process_options: Options | None = None
"""Options of all tuners of this process that have none of their own: those of ``ktuned run``."""


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
    pin: str | None = None,
    numerics: Literal["tolerance", "exact"] = "tolerance",
) -> Callable[[Any], Any]:
    """Tune a ``@tilelang.jit`` function as ``tilelang.autotune`` does, in ktuned's daemon.

    The first arguments are TileLang's; ``configs`` may be a dict of axes, too. With ``mode="wait"`` the first call of a
    key waits for its winner, as with TileLang; with ``"background"`` it gets the best kernel known, else the first
    config's, which is exchanged in place for the winner. ``upgrade`` says how often: ``"once"``, ``"never"``,
    ``"always"``. Where no daemon runs the call is recorded all the same, and ``without_daemon`` leaves it to
    ``"tilelang"``, or compiles the ``"first"`` config. Processes with the same ``pin`` see the same winners for good.
    With ``numerics="exact"`` only configs win that leave the bits of the first config, and no other is launched.

    Raises:
        ValueError: an option has no such value, or the function is given without options.
        ImportError: TileLang is not installed, or is another one than this plugin knows.

    Example:
        >>> @autotune(configs=[{"block": 128}, {"block": 256}])
        ... @tilelang.jit(out_idx=[-1])
        ... def scale(size, block=128): ...
    """
    options = Options.of(mode, upgrade, without_daemon, pin, numerics)
    tuner = tilelangs_tuner()
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
        made = decorate(function)
        made.__dict__[_OPTIONS] = options
        return made

    return adopt_function


def adopt_process(tuner: Any, mode: Mode, numerics: str = "tolerance") -> None:
    """Adopt all tuners of this process, given TileLang's module: for ``ktuned run``."""
    global _process_options
    check_version(importlib.import_module("tilelang").__version__)
    _process_options = Options.of(mode, "once", "tilelang", None, numerics)
    adopt_classes(tuner)


def why_not_adopted(kind: type[Any]) -> str:
    """Return why the calls of a subclass of TileLang's tuners do not come by here; empty if they do."""
    for method in ("run", "__call__", "get_tunner"):
        for base in kind.__mro__:
            if base.__module__ == MODULE:
                break
            code = getattr(vars(base).get(method), "__code__", None)
            if code is not None and not {"run", "get_tunner", method} & {*code.co_names}:
                return f"{base.__module__}.{base.__qualname__} has a {method} of its own, which never calls TileLang's"
    return ""


def tilelangs_tuner() -> Any:
    """Return the module of TileLang's tuner.

    Raises:
        ImportError: TileLang is not installed, or is another one than this plugin knows.
    """
    check_version(importlib.import_module("tilelang").__version__)
    return importlib.import_module(MODULE)


@cache
def tuner_class() -> type[Any]:
    """Return ``AutoTuner``: TileLang's tuner of a function, adopted."""
    tuner = tilelangs_tuner()
    adopt_classes(tuner)
    base: type[Any] = tuner.AutoTuner

    class AutoTuner(base):  # type: ignore[misc]
        """TileLang's tuner of a function, whose configs are tuned by ktuned's daemon."""

        _ktuned_options = Options()

        def set_tuning_args(
            self,
            mode: Mode = "wait",
            upgrade: Upgrade = "once",
            without_daemon: WithoutDaemon = "tilelang",
            pin: str | None = None,
            numerics: str = TOLERANCE,
        ) -> Any:
            """Set ktuned's own options: see :func:`autotune`."""
            self._ktuned_options = Options.of(mode, upgrade, without_daemon, pin, numerics)
            return self

    return AutoTuner


# The classes


@cache
def adopt_classes(tuner: Any) -> None:
    """Have TileLang's two classes, and all that derives from them, ask here. Once for a process."""
    tuner.AutoTuner.run = _deciding(tuner.AutoTuner.run, importlib.import_module("tilelang.autotuner.param"))
    tuner.AutoTuneImpl.__call__ = _forgetting(tuner.AutoTuneImpl.__call__)
    for base in (tuner.AutoTuner, tuner.AutoTuneImpl):
        _adopt_subclasses(base)
    _adopt_methods(tuner.AutoTuneImpl)


def _adopt_subclasses(base: type[Any]) -> None:
    """Adopt the subclasses that there are, and those that will be."""
    made = base.__dict__.get("__init_subclass__")

    def init_subclass(cls: type[Any], /, **more: Any) -> None:
        if made is not None:
            made.__func__(cls, **more)
        else:
            super(base, cls).__init_subclass__(**more)
        _adopt_methods(cls)

    base.__init_subclass__ = classmethod(init_subclass)  # type: ignore[assignment]
    known = base.__subclasses__()
    while known:
        one = known.pop()
        _adopt_methods(one)
        known += one.__subclasses__()


def _adopt_methods(cls: type[Any]) -> None:
    """Wrap the methods that a class defines itself: what makes a call's tuner, and what cannot be served."""
    if "get_tunner" in vars(cls):
        cls.get_tunner = _marking(vars(cls)["get_tunner"])
    if reason := why_not_adopted(cls):
        for name in {"run", "__call__"} & vars(cls).keys():
            setattr(cls, name, _reporting(vars(cls)[name], f"{cls.__module__}.{cls.__qualname__}", reason))


def _deciding(run: Callable[..., Any], param: Any) -> Callable[..., Any]:
    """Return a ``run`` that gives the kernel which was decided on, and tunes what is left to TileLang."""
    signature = inspect.signature(run)

    @wraps(run)
    def decide(self: Any, *args: Any, **kwargs: Any) -> Any:
        options = getattr(self, _OPTIONS, _process_options)
        if options is not None:
            given = signature.bind(self, *args, **kwargs)
            given.apply_defaults()
            call = _tuned(self, options, given.arguments)
            if call is not None:
                return _result(param.AutotuneResult, call)
        return run(self, *args, **kwargs)

    return decide


def _marking(get_tunner: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``get_tunner`` whose tuner knows the autotuned function that it is for."""

    @wraps(get_tunner)
    def mark(self: Any) -> Any:
        made = get_tunner(self)
        made.__dict__[_FUNCTION] = self
        if _OPTIONS in self.__dict__:
            made.__dict__[_OPTIONS] = self.__dict__[_OPTIONS]
        return made

    return mark


def _forgetting(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``__call__`` that keeps no kernel which was for one call alone."""

    @wraps(call)
    def forget(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return call(self, *args, **kwargs)
        finally:
            once = self.__dict__.pop(_ONCE, None)
            for key, (kernel, _) in list(self._tuner_cache.items()) if once is not None else ():
                if kernel is once:
                    del self._tuner_cache[key]

    return forget


def _reporting(method: Callable[..., Any], name: str, reason: str) -> Callable[..., Any]:
    """Return a method that notes that it is TileLang's, or its author's own."""

    @wraps(method)
    def report(self: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(self, _OPTIONS, _process_options) is not None:
            account.record_left_alone(name, reason)
        return method(self, *args, **kwargs)

    return report


# One call


def _tuned(tuner: Any, options: Options, arguments: Mapping[str, Any]) -> KeyedCall | None:
    """Return a call whose kernel was decided on, or ``None`` if TileLang is to go on.

    What is wrong with a call TileLang says itself, as it does without ktuned.
    """
    early_stop = arguments["early_stop_factor"] if arguments["early_stop"] else 0.0
    args, kwargs = tuner._kernel_parameters or ((), ())
    tuner.configs = configs = listed(tuner.configs, args, dict(kwargs))
    if not configs or _is_given(tuner, args, dict(kwargs)) or _has_unused_keys(tuner.fn, configs):
        return None
    if early_stop and early_stop < 1.0:
        return None
    compile_function, elaborate = tuner._ensure_jit_functions()

    def compile_config(config: Mapping[str, Any]) -> Any:
        named = {name: value for name, value in config.items() if name != PASS_CONFIGS}
        own = {"__pass_configs__": config[PASS_CONFIGS]} if config.get(PASS_CONFIGS) else {}
        return compile_function(**named, **own)

    function = tuner.__dict__.get(_FUNCTION)
    task = Task(
        function=getattr(tuner.fn, "orig_func", tuner.fn),
        configs=configs,
        elaborate=elaborate,
        compile=compile_config,
        compile_args=tuner.compile_args,
        compile_flags=_flags(function),
        profile_args=tuner.profile_args,
        timeout_s=arguments["timeout"],
        early_stop=early_stop,
    )
    call = tune(task, options)
    if call is not None and call.is_once and function is not None and call.found is not None:
        function.__dict__[_ONCE] = call.found.kernel
    return call


def _is_given(tuner: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether the call itself gives a knob: then nothing is tuned."""
    if tuner._kernel_parameters is None:
        return False
    names = list(tuner._function_parameters or ())
    knobs = [name for name in tuner.configs[0] if name in names]
    return any(name in kwargs or names.index(name) < len(args) for name in knobs)


def _has_unused_keys(function: Any, configs: Sequence[Mapping[str, Any]]) -> bool:
    names = {*inspect.signature(getattr(function, "orig_func", function)).parameters, PASS_CONFIGS}
    return any(set(config) - names for config in configs)


def _flags(function: Any) -> tuple[str, ...]:
    flags = getattr(getattr(function, "jit_impl", None), "compile_flags", None)
    return () if not flags else (flags,) if isinstance(flags, str) else tuple(flags)


def _result(kind: Any, call: KeyedCall) -> Any:
    found = call.found
    assert found is not None
    return kind(
        latency=found.latency,
        config=dict(found.config),
        ref_latency=found.ref_latency,
        libcode=found.kernel.get_kernel_source(),
        func=found.kernel.prim_func,
        kernel=found.kernel,
    )
