"""The drop-in for ``triton.autotune``: a call launches the best config known so far; the daemon looks for a better one.

A case
    A library derives from ``Autotuner``; its own ``run`` stores each winner on disk. A program calls its kernel with a
    new key. The library's ``run`` misses its store and asks ``prune_configs`` for the configs to measure. There we
    decide on one config. If we returned it as the only one, the library would store it as the measured best. So our
    ``prune_configs`` leaves the library's ``run`` by an exception instead, and our own ``run`` around it launches the
    config as Triton does. The key's later calls are launched by our ``run`` at once. When the daemon has measured the
    key's winner, the next call gets through: ``prune_configs`` returns the winner alone, ``_bench`` returns the latency
    that the daemon has measured, and the library stores both.

Where it hooks in
    ``run``, and the methods by which a ``run`` gets and measures its configs: ``prune_configs``, ``_bench``, and the
    ``policy`` of FlagGems. The exception is a ``BaseException``, because libraries catch ``Exception``.

What it patches
    These methods of ``Autotuner`` and of all its subclasses, once for a process. An instance may therefore be made at
    any time and anywhere. It is adopted if :func:`autotune` made it, or if the process runs under ``ktuned run``; every
    other instance behaves as in plain Triton.

Fixed configs
    With exact numerics, or with a file of winners, a library's own ``run`` is never called, because it might launch a
    config from its store.

The three levels
    - :func:`adopt_class` patches the class; the wrappers below it find the instance's :class:`AdoptedFunction`.
    - :class:`AdoptedFunction` finds the tuning key of a call. If the call cannot be described, Triton tunes it.
    - :class:`~ktuned_triton.keyed_call.TritonCall` is one key: it carries out what its launch machine decides.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, wraps
from importlib.metadata import version
from math import inf
from operator import is_
from typing import Any, Literal

from ktuned.dropin import (
    ANSWERED,
    Mode,
    NotTunable,
    Numerics,
    Policy,
    Upgrade,
    WinnersFile,
    account,
    adopt_subclasses,
    choose_policy,
    convert_to_scalar,
    daemon_link,
    explain_bypass,
    find_log,
    is_capturing,
    leave_to_framework,
    list_application_paths,
    name_function,
)
from ktuned.model import canonical
from ktuned_triton.call import find_jit_function, list_tensor_names, make_problem, map_arguments, read_knobs
from ktuned_triton.compile_trace import TracedConfigs, find_tracing_context
from ktuned_triton.declaration import Declaration, describe_function, is_importable
from ktuned_triton.environment import find_deciding_variables
from ktuned_triton.keyed_call import CallArguments, TritonCall, launch_config
from ktuned_triton.lowering import is_supported_version

WithoutDaemon = Literal["triton", "first"]

_ADOPTED_ATTRIBUTE = "_ktuned"
_POLICY_ATTRIBUTE = "_ktuned_policy"
_TRACED_ATTRIBUTES = ("configs", "early_config_prune", "perf_model")
"""Attributes of an autotuner that ``torch.compile`` reads while it traces."""

_ASKING_METHODS = ("run", "prune_configs", "_bench", "policy")
"""A ``run`` that calls none of these never asks for configs, and chooses them in a way that is not seen here."""

_process_policy: Policy | None = None
"""The policy of ``ktuned run``; it holds for every autotuned function of this process without a policy of its own."""


def autotune(
    configs: list[Any],
    key: list[str],
    prune_configs_by: Mapping[str, Any] | None = None,
    reset_to_zero: list[str] | None = None,
    restore_value: list[str] | None = None,
    pre_hook: Callable[..., Any] | None = None,
    post_hook: Callable[..., Any] | None = None,
    warmup: int | None = None,
    rep: int | None = None,
    use_cuda_graph: bool = False,
    do_bench: Callable[..., Any] | None = None,
    cache_results: bool = False,
    *,
    mode: Mode = "background",
    upgrade: Upgrade = "once",
    without_daemon: WithoutDaemon = "triton",
    numerics: Numerics = "tolerance",
    winners: str | os.PathLike[str] | None = None,
) -> Callable[[Any], Any]:
    """Tune a ``@triton.jit`` function as ``triton.autotune`` does, but in ktuned's daemon.

    A call with a new key launches the best config that the daemon knows. If it knows none, the call launches the first
    config that is left after pruning and that the device can launch. A call never waits for tuning, unless ``mode`` is
    ``"wait"``.

    The arguments up to ``cache_results`` are Triton's. The others are:

    - ``mode``: ``"background"``, or ``"wait"``: the first call of a key waits until its tuning has ended.
    - ``upgrade``: how often a key's config may change in a process: ``"once"``, for the first fresh winner;
      ``"never"`` after its first call; ``"always"``.
    - ``without_daemon``: what a call does if no daemon runs: with ``"triton"``, Triton tunes in the call; with
      ``"first"``, the first config is launched. The call is recorded for a later daemon in both cases.
    - ``numerics``: with ``"exact"`` a winner must reproduce the bits of a key's first config, and no other config is
      launched, with or without a daemon.
    - ``winners``: a file of ``ktuned export``, or a directory of such files, that fixes the config of each key. No
      daemon is asked, nothing is recorded, and no config changes; a key that the file lacks launches its first config.

    Raises:
        ValueError: an option has a value that it cannot take.
        WinnersError: a file of ``winners`` cannot be read.

    Example:
        >>> @autotune(configs=[triton.Config({"BLOCK": 128}), triton.Config({"BLOCK": 256})], key=["size"])
        ... @triton.jit
        ... def scale(x, y, size, BLOCK: tl.constexpr): ...
    """
    policy = Policy.from_choices(
        "triton", mode=mode, upgrade=upgrade, without_daemon=without_daemon, numerics=numerics, winners=winners
    )
    from triton.runtime.autotuner import Autotuner

    adopt_class(Autotuner)

    def decorate(function: Any) -> Any:
        tuner = Autotuner(
            function,
            function.arg_names,
            configs,
            key,
            reset_to_zero,
            restore_value,
            pre_hook=pre_hook,
            post_hook=post_hook,
            prune_configs_by=prune_configs_by,
            warmup=warmup,
            rep=rep,
            use_cuda_graph=use_cuda_graph,
            do_bench=do_bench,
            cache_results=cache_results,
        )
        tuner.__dict__[_POLICY_ATTRIBUTE] = policy
        return tuner

    return decorate


def adopt_process(
    autotuner: type[Any], mode: str, numerics: str = "tolerance", winners: WinnersFile | None = None
) -> None:
    """Adopt all autotuned functions of this process: for ``ktuned run``."""
    global _process_policy
    _process_policy = Policy(mode, numerics=numerics, winners=winners)
    adopt_class(autotuner)


def _find_policy(tuner: Any) -> Policy | None:
    """Return the policy of an autotuned function; ``None`` if it is not adopted."""
    return choose_policy(tuner.__dict__.get(_POLICY_ATTRIBUTE), _process_policy)


def explain_non_adoption(tuner: Any) -> str:
    """Return why an autotuned function is left to Triton for all its calls; empty if it is adopted.

    An adopted function may still have calls that are left to Triton, for a reason in their arguments.
    """
    return explain_bypass(type(tuner), "Triton", "run", _ASKING_METHODS) or _explain_refusal(tuner)


def _explain_refusal(tuner: Any) -> str:
    """Return why no other process could tune an autotuned function; empty if one can."""
    try:
        function = find_jit_function(tuner)
        if any(getattr(config, "ir_override", None) for config in _read_own_configs(tuner)):
            return "a config has an ir_override, a file of its own that replaces the function"
        if not is_importable(function) and not is_supported_version(version("triton")):
            return f"no import finds it, and Triton {version('triton')} cannot be stopped after its front end"
    except NotTunable as error:
        return str(error)
    return ""


# The class


_adopted_classes: set[type[Any]] = set()


def adopt_class(autotuner: type[Any]) -> None:
    """Patch Triton's ``Autotuner`` and all its present and future subclasses; a second call does nothing.

    Raises:
        AttributeError: this Triton's class lacks a method that the drop-in wraps.
    """
    if autotuner in _adopted_classes:
        return
    if not {"prune_configs", "_bench", "run"} <= vars(autotuner).keys():
        raise AttributeError("its Autotuner has no prune_configs")
    _adopted_classes.add(autotuner)
    autotuner.__init__ = _wrap_init(autotuner.__init__)
    for name in _TRACED_ATTRIBUTES:
        setattr(autotuner, name, _make_traced_property(name))
    _adopt_methods(autotuner)
    adopt_subclasses(autotuner, _adopt_methods)


def _wrap_init(make: Callable[..., None]) -> Callable[..., None]:
    """Return an ``__init__`` that announces a library's first autotuned function to the daemon.

    The daemon must import the library, too, which takes as long as it does here, so it starts now instead of at the
    first call.
    """

    @wraps(make)
    def make_and_announce(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        policy = _find_policy(self)
        if policy is None or policy.winners is not None:
            return
        library = str(self.base_fn.__module__).partition(".")[0]
        if library in _announced_libraries or library in ("__main__", "__mp_main__") or library not in sys.modules:
            return
        _announced_libraries.add(library)
        with contextlib.suppress(ImportError):
            from ktuned_triton.build import Library

            wanted = Library(library, list_application_paths(library)).to_plain()
            daemon_link().prepare_workers("triton", find_deciding_variables(), wanted)

    return make_and_announce


_announced_libraries: set[str] = set()
"""Libraries that this process has announced to the daemon."""


def _adopt_methods(cls: type[Any]) -> None:
    """Wrap the methods that a call goes through, if this class defines them."""
    for name, wrap in _WRAPPERS.items():
        if callable(vars(cls).get(name)):
            setattr(cls, name, wrap(vars(cls)[name]))


class _Decided(BaseException):
    """Leaves a library's ``run`` before its code that stores, because the key has no winner yet."""

    def __init__(self, call: TritonCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.call = call
        self.args_to_launch = args
        self.kwargs_to_launch = kwargs


@dataclass
class _Run:
    """A ``run`` of a tuner that is under way in this thread.

    Attributes:
        function: the adopted function.
        args: the arguments of the call, by position.
        kwargs: the arguments by name.
        is_asked: whether the tuner has asked for its configs; a tuner that launches from its own store does not.
        is_pruning: whether a ``prune_configs`` runs; if an override calls its parent's, only the outermost chooses.
        winner: the key whose winner gets through to the library.
        is_unchanged: whether the tuner launches the arguments that it was given.
    """

    function: AdoptedFunction
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    is_asked: bool = False
    is_pruning: bool = False
    winner: TritonCall | None = None
    is_unchanged: bool = False

    def keeps_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Return whether the tuner's arguments are those of the call."""
        given, passed = (*self.args, *self.kwargs.values()), (*args, *kwargs.values())
        return len(given) == len(passed) and all(map(is_, given, passed))


class _Running(threading.local):
    """The innermost ``run`` of this thread, and the key that it has last looked up in its tuner's cache."""

    run: _Run | None = None
    key: Any = None

    def find(self, tuner: Any) -> _Run | None:
        """Return this thread's run of a tuner."""
        return self.run if self.run is not None and self.run.function.tuner is tuner else None


_running = _Running()


def _wrap_run(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``run`` that launches what was decided on, around a library's own ``run``."""

    @wraps(run)
    def run_adopted(self: Any, *args: Any, **kwargs: Any) -> Any:
        # The ``run`` of a subclass may call its parent's; only the outermost decides.
        if type(self).run is not run_adopted or kwargs.get("warmup", True):
            return run(self, *args, **kwargs)
        function = self.__dict__.get(_ADOPTED_ATTRIBUTE)
        if function is None or function.tuner is not self:
            # A copy of an autotuner has the original's `AdoptedFunction` in its `__dict__`, but needs its own.
            policy = _find_policy(self)
            if policy is None:
                return run(self, *args, **kwargs)
            function = self.__dict__[_ADOPTED_ATTRIBUTE] = AdoptedFunction(self, policy)
        return function.run(run, args, kwargs)

    return run_adopted


def _wrap_prune_configs(prune: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``prune_configs`` that leaves ``run``, or returns the winner, or all configs that the tuner measures."""

    @wraps(prune)
    def prune_configs(self: Any, kwargs: dict[str, Any]) -> Any:
        run = _running.find(self)
        if run is None or run.is_pruning:
            return prune(self, kwargs)
        run.is_pruning = True
        try:
            pruned = list(prune(self, kwargs))
        finally:
            run.is_pruning = False
        return run.function.choose_configs(run, pruned, tuple(self.nargs.values()), kwargs)

    return prune_configs


def _wrap_bench(bench: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``_bench`` that returns the daemon's latency of a winner.

    A subclass's own ``_bench`` may store what Triton's returns, so only Triton's is replaced.
    """

    @wraps(bench)
    def _bench(self: Any, *args: Any, config: Any, **meta: Any) -> Any:
        run = _running.find(self)
        if run is not None and not run.is_asked:
            # This tuner measures without pruning.
            run.function.choose_configs(run, list(_read_own_configs(self)), args, meta)
        if run is None or run.winner is None:
            return bench(self, *args, config=config, **meta)
        if config.all_kwargs() != run.winner.winner.all_kwargs():
            return [inf] * 3
        if bench.__module__.startswith("triton."):
            return [run.winner.winner_latency_ms] * 3
        return bench(self, *args, config=config, **meta)

    return _bench


def _wrap_policy(policy: Any) -> Callable[..., Any]:
    """Return a ``policy``, FlagGems' choice among configs, that leaves ``run`` or has the winner alone to choose."""

    @wraps(policy)
    def choose_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = _running.find(self)

        def choose_among(value: Any) -> Any:
            is_list = isinstance(value, list | tuple) and value and all(hasattr(one, "all_kwargs") for one in value)
            if run is None or not is_list:
                return value
            if run.winner is not None:
                return [run.winner.winner]
            return value if run.is_asked else run.function.choose_configs(run, list(value), run.args, run.kwargs)

        chosen = {name: choose_among(value) for name, value in kwargs.items()}
        return policy.__get__(self, type(self))(*map(choose_among, args), **chosen)

    return choose_config


_WRAPPERS = {"run": _wrap_run, "prune_configs": _wrap_prune_configs, "_bench": _wrap_bench, "policy": _wrap_policy}


@cache
def _define_observed_cache(kind: type[Any]) -> type[Any]:
    """Return a subclass of a tuner's class of caches that notes the key that is looked up.

    A library's keys may be coarser than Triton's: FlagGems rounds sizes up.
    """

    class ObservedCache(kind):  # type: ignore[misc]
        """A cache of winners."""

        is_observed_by_ktuned = True

        def __contains__(self, key: Any) -> bool:
            _running.key = key
            return bool(super().__contains__(key))

        def __getitem__(self, key: Any) -> Any:
            _running.key = key
            return super().__getitem__(key)

        def get(self, key: Any, *default: Any) -> Any:
            _running.key = key
            return super().get(key, *default)

    ObservedCache.__name__, ObservedCache.__qualname__ = kind.__name__, kind.__qualname__
    ObservedCache.__module__ = kind.__module__
    return ObservedCache


def _observe_lookups(tuner: Any) -> None:
    kind: Any = type(tuner.cache)
    if hasattr(kind, "is_observed_by_ktuned"):
        return
    # An object whose class cannot be exchanged keeps it: each of Triton's keys is then a key.
    with contextlib.suppress(TypeError):
        if kind is dict:
            tuner.cache = _define_observed_cache(kind)(tuner.cache)
        else:
            tuner.cache.__class__ = _define_observed_cache(kind)


def _make_traced_property(name: str) -> property:
    """Return a property for ``name`` that shows ``torch.compile`` a single config if all keys have the same winner."""

    def read_attribute(self: Any) -> Any:
        # Every launch runs this.
        if find_tracing_context() is not None:
            adopted = self.__dict__.get(_ADOPTED_ATTRIBUTE)
            if adopted is not None and (only := adopted.traced.find_configs()):
                # A single config needs no pruning and no ranking.
                return only if name == "configs" else None
        try:
            return self.__dict__[name]
        except KeyError:
            raise AttributeError(name) from None

    def write_attribute(self: Any, value: Any) -> None:
        self.__dict__[name] = value

    return property(read_attribute, write_attribute)


def _read_own_configs(tuner: Any) -> list[Any]:
    configs: list[Any] = tuner.__dict__["configs"]
    return configs


# One function


def _name_function(tuner: Any) -> str:
    return name_function(tuner.base_fn.__module__ or "__main__", str(tuner.base_fn.__qualname__)).full


class AdoptedFunction:
    """An autotuned function of this process, with its declaration and its tuning keys."""

    def __init__(self, tuner: Any, policy: Policy) -> None:
        self._tuner = weakref.ref(tuner)
        self._policy = policy
        self._has_fixed_configs = policy.is_exact or policy.winners is not None
        self._has_own_run = not type(tuner).run.__wrapped__.__module__.startswith("triton.")
        self._key_places = [(name, tuner.arg_names.index(name)) for name in tuner.keys if name in tuner.arg_names]
        self.traced = TracedConfigs(self._find_common_winner)
        self.name = f"{tuner.base_fn.__module__}.{tuner.base_fn.__qualname__}"
        self._calls: dict[Any, TritonCall] = {}
        self._calls_by_library_key: dict[Any, TritonCall] = {}
        self._decided: dict[Any, TritonCall | None] = {}
        """What was decided on, by Triton's key of a call; ``None`` for a key whose config the library chooses."""
        # Reentrant, because a pruning function may call the kernel.
        self._lock = threading.RLock()
        self._declaration: Declaration | None = None
        self._refusal: str | None = None
        self._is_importable = True
        self._has_stored = False
        if self._has_own_run:
            _observe_lookups(tuner)
        _functions.add(self)

    @property
    def tuner(self) -> Any:
        """Triton's autotuner."""
        return self._tuner()

    def run(self, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Launch a call's config, or have the tuner's own ``run`` launch it.

        Raises:
            RuntimeError: the function's numerics are exact, and its class launches configs that are not seen here.
            Exception: what the tuner raises.
        """
        tuner: Any = self._tuner()
        count = len(args)
        try:
            key = (
                *[args[at] if at < count else kwargs.get(name) for name, at in self._key_places],
                *[getattr(value, "dtype", None) for value in args],
                *[getattr(value, "dtype", None) for value in kwargs.values()],
            )
            call = self._decided.get(key, _UNDECIDED)
        except TypeError:
            # Triton raises its own error for a key that cannot be hashed.
            return run(tuner, *args, **kwargs)
        if call is None:
            return run(tuner, *args, **kwargs)
        if call is not _UNDECIDED:
            if not call.gets_through:
                return call.launch(tuner, args, kwargs)
            call.counter.launches += 1
        under_way, arguments = _running.run, getattr(tuner, "nargs", None)
        current = _running.run = _Run(self, args, kwargs)
        _running.key = None
        try:
            result = self._launch_fixed_config(run, current) if self._has_fixed_configs else run(tuner, *args, **kwargs)
        except _Decided as decided:
            call, args_to_launch, kwargs_to_launch = decided.call, decided.args_to_launch, decided.kwargs_to_launch
        else:
            self._note_library_choice(key, current)
            return result
        finally:
            _running.run = under_way
        tuner.nargs = arguments
        if not call.is_once and current.keeps_arguments(args_to_launch, kwargs_to_launch):
            # A ``run`` that changes the arguments is called each time.
            self._decided[key] = call
        return call.launch(tuner, args_to_launch, kwargs_to_launch)

    def _launch_fixed_config(self, run: Callable[..., Any], current: _Run) -> Any:
        """Launch a call without the library's ``run``, which might launch a config from its store."""
        tuner = self.tuner
        if self._policy.is_exact and (reason := explain_bypass(type(tuner), "Triton", "run", _ASKING_METHODS)):
            raise RuntimeError(f"ktuned: {self.name} cannot have exact numerics: {reason}")
        tuner.nargs = dict(zip(tuner.arg_names, current.args, strict=False))
        configs = tuner.prune_configs(current.kwargs)
        if not self._policy.is_exact and len(configs) > 1:
            return run(tuner, *current.args, **current.kwargs)
        tuner.nargs = None
        return launch_config(tuner, configs[0], configs[0].all_kwargs(), current.args, current.kwargs)

    def _note_library_choice(self, key: Any, current: _Run) -> None:
        """After the tuner's ``run``, note the key that it has decided itself, or that its winner got through."""
        if current.winner is not None:
            current.winner.gets_through = False
            self._has_stored = True
            if current.is_unchanged:
                self._decided[key] = current.winner
            return
        self._decided[key] = None
        if not current.is_asked and not self._has_stored and len(_read_own_configs(self.tuner)) > 1:
            values = {name: convert_to_scalar(value) for (name, _), value in zip(self._key_places, key, strict=False)}
            account.record_key(f"{self.name} {canonical(values)}", ANSWERED)
            account.record_adopted(self.name)

    def choose_configs(
        self, current: _Run, pruned: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[Any]:
        """Return the configs that the tuner is to measure: ``pruned`` if it tunes the key, or the key's winner.

        No error of ours may reach the application.

        Raises:
            _Decided: a config was decided on that the tuner must not store.
        """
        current.is_asked = True
        winners = self._policy.winners
        if len(pruned) < 2 and not (winners is not None and winners.has_function(_name_function(self.tuner))):
            return pruned
        with self._lock:
            call = self._decide_call(pruned, args, kwargs)
        if call is None:
            return pruned
        if call.gets_through:
            current.winner, current.is_unchanged = call, current.keeps_arguments(args, kwargs)
            return [call.winner]
        raise _Decided(call, args, kwargs)

    def _decide_call(self, pruned: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> TritonCall | None:
        """Return the tuning key of a call, with its decision; ``None`` if Triton tunes it."""
        if self._refusal is None:
            self._refusal = _explain_refusal(self.tuner)
            if self._refusal:
                leave_to_framework("Triton", self.name, self._refusal)
            else:
                self._is_importable = is_importable(find_jit_function(self.tuner))
                self._declaration = describe_function(self.tuner)
                account.record_adopted(self.name)
        if self._declaration is None:
            return None
        library_key = _running.key
        try:
            given = CallArguments(self._move_cached_config_first(pruned, args, kwargs), args, kwargs)
            call = None if library_key is None else self._calls_by_library_key.get(library_key)
            if call is None:
                call = self._find_keyed_call(self._declaration, given)
                if library_key is not None:
                    self._calls_by_library_key[library_key] = call
            return call if call.decide(given) else None
        except Exception as error:
            fault = str(error).partition("\n")[0]
            # If the call itself is wrong, Triton raises the error when it tunes.
            reason = f"a call cannot be evaluated: {type(error).__name__}: {fault}"
            leave_to_framework("Triton", self.name, reason)
            return None

    def _find_keyed_call(self, declaration: Declaration, call: CallArguments) -> TritonCall:
        """Return the tuning key of a call; the key's first call makes it."""
        tuner, model = self.tuner, call.model
        texts = tuple(dict.fromkeys(canonical(read_knobs(config)) for config in call.configs))
        problem = make_problem(tuner, call.configs, call.args, call.kwargs)
        tensors = list_tensor_names(tuner, call.args, call.kwargs)
        key = canonical(problem), tensors, model
        if key not in self._calls:
            declaration = replace(declaration, specialize=tuple(problem), tensors=tensors)
            self._calls[key] = TritonCall(
                tuner, self.name, problem, model, declaration, texts, self._policy, is_importable=self._is_importable
            )
        return self._calls[key]

    def _move_cached_config_first(self, pruned: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return the configs, with the winner in Triton's disk cache first, if there is one.

        The application ran with that winner before ktuned, so it must not start with a worse config now.
        """
        tuner = self.tuner
        if not tuner.cache_results or self._has_fixed_configs or is_capturing():
            return pruned
        arguments = map_arguments(tuner, args, kwargs)
        # The call's tuning key, exactly as Triton computes it.
        key = tuple(
            [arguments[name] for name in tuner.keys if name in arguments]
            + [str(value.dtype) for value in arguments.values() if hasattr(value, "dtype")]
        )
        try:
            tuner.check_disk_cache(key, pruned, _raise_no_cached_config)
        except _NoCachedConfig:
            return pruned
        except Exception as error:
            find_log("Triton").info("Triton's cache of %s cannot be read: %s", self.name, error)
            return pruned
        # Triton has put the winner into its in-memory cache; take it out, because our decision goes there.
        cached_config = tuner.cache.pop(key, None)
        return sorted(pruned, key=lambda config: config != cached_config)

    def renew_lock(self) -> None:
        """Make a new lock in a forked child, where the thread that held the old one does not exist."""
        self._lock = threading.RLock()

    def _find_common_winner(self) -> list[Any]:
        """Return a list with the winner that all keys of this function share; an empty list if there is none."""
        winners = {
            None if call.winner is None else call.machine.config: call.winner for call in list(self._calls.values())
        }
        return list(winners.values()) if len(winners) == 1 and None not in winners else []


_functions: weakref.WeakSet[AdoptedFunction] = weakref.WeakSet()


def _renew_locks_after_fork() -> None:
    for function in list(_functions):
        function.renew_lock()


os.register_at_fork(after_in_child=_renew_locks_after_fork)


_UNDECIDED: Any = object()


class _NoCachedConfig(Exception):
    """Raised in place of Triton's measurement when its disk cache has no winner."""


def _raise_no_cached_config() -> None:
    raise _NoCachedConfig


__all__ = ["adopt_class", "adopt_process", "autotune", "explain_non_adoption"]
