"""The drop-in for ``triton.autotune``: a call launches the best config known so far; the daemon looks for a better one.

Where it hooks in
    When Triton's in-memory cache misses, and only then, ``Autotuner.run`` calls ``prune_configs`` for the configs that
    it will measure. By then a subclass's own ``run``, its own store of winners and its own pruning have done their
    work. Our ``prune_configs`` returns a single config, the best one known. Triton puts it into its cache and launches
    it, in this call and in all later calls of the key, by its own code. A better winner later replaces the config in
    that cache. So there is no second launch path, whatever a subclass does to ``run``.

What it patches
    The class ``Autotuner``, once for a process, and ``prune_configs`` and ``_bench`` of each subclass. An instance may
    therefore be made at any time and anywhere. It is adopted if :func:`autotune` made it, or if the process runs under
    ``ktuned run``; every other instance behaves as in plain Triton.

The three levels
    - :func:`adopt_class` patches the class; the wrappers below it find the instance's :class:`AdoptedFunction`.
    - :class:`AdoptedFunction` finds the tuning key of a call. If the call cannot be described, Triton tunes it.
    - :class:`~ktuned_triton.keyed_call.TritonCall` is one key: it carries out what its launch machine decides.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from typing import Any, Literal

from ktuned.dropin import (
    Mode,
    NotTunable,
    Numerics,
    Policy,
    Upgrade,
    WinnersFile,
    account,
    adopt_subclasses,
    choose_policy,
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
from ktuned_triton.declaration import Declaration, describe_function, require_importable
from ktuned_triton.environment import find_deciding_variables
from ktuned_triton.keyed_call import CallArguments, TritonCall, define_launched_config

WithoutDaemon = Literal["triton", "first"]

_ADOPTED_ATTRIBUTE = "_ktuned"
_POLICY_ATTRIBUTE = "_ktuned_policy"
_TRACED_ATTRIBUTES = ("configs", "early_config_prune", "perf_model")
"""Attributes of an autotuner that ``torch.compile`` reads while it traces."""

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
    if reason := explain_bypass(type(tuner), "Triton", "run", ("prune_configs", "run")):
        return reason
    try:
        function = find_jit_function(tuner)
        if any(getattr(config, "ir_override", None) for config in _read_own_configs(tuner)):
            return "a config has an ir_override, a file of its own that replaces the function"
        require_importable(function)
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
        if library in _announced_libraries or library in ("__main__", "__mp_main__"):
            return
        _announced_libraries.add(library)
        with contextlib.suppress(ImportError):
            from ktuned_triton.build import Library

            wanted = Library(library, list_application_paths()).to_plain()
            daemon_link().prepare_library("triton", wanted, find_deciding_variables())

    return make_and_announce


_announced_libraries: set[str] = set()
"""Libraries that this process has announced to the daemon."""


def _adopt_methods(cls: type[Any]) -> None:
    """Wrap the methods that a cache miss calls, if this class defines them."""
    if "prune_configs" in vars(cls):
        cls.prune_configs = _wrap_prune_configs(vars(cls)["prune_configs"])
    if "_bench" in vars(cls):
        cls._bench = _wrap_bench(vars(cls)["_bench"])
    if callable(getattr(cls, "policy", None)) and "policy" in vars(cls):
        cls.policy = _wrap_policy(vars(cls)["policy"])


def _wrap_prune_configs(prune: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``prune_configs`` that returns the one config to launch.

    If an override calls its parent's, only the outermost chooses.
    """

    @wraps(prune)
    def prune_configs(self: Any, kwargs: dict[str, Any]) -> Any:
        policy = _find_policy(self)
        # `kwargs` is part of the identity, because a pruning function may itself call the kernel with other arguments.
        pruning = threading.get_ident(), id(self), id(kwargs)
        # A launch passes `warmup=False`; `Autotuner.warmup` compiles all configs and passes nothing.
        if policy is None or kwargs.get("warmup", True) or pruning in _running_prunings:
            return prune(self, kwargs)
        _running_prunings.add(pruning)
        # A call of the kernel within the pruning resets `nargs`; we restore it.
        arguments = self.nargs
        try:
            pruned = list(prune(self, kwargs))
        finally:
            _running_prunings.discard(pruning)
            self.nargs = arguments
        if len(pruned) < 2 and not (policy.winners is not None and policy.winners.has_function(_name_function(self))):
            return pruned
        return _adopt_tuner(self, policy).choose_configs(pruned, kwargs)

    return prune_configs


_running_prunings: set[tuple[int, int, int]] = set()
"""Prunings that are running, as (thread, autotuner, arguments). An override and its parent's method are one pruning."""


def _wrap_bench(bench: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``_bench`` that does not time a config of ours; Triton before 3.8 times even a single config."""

    @wraps(bench)
    def _bench(self: Any, *args: Any, config: Any, **meta: Any) -> Any:
        if isinstance(config, define_launched_config()):
            return [0.0, 0.0, 0.0]
        return bench(self, *args, config=config, **meta)

    return _bench


def _wrap_policy(policy: Any) -> Callable[..., Any]:
    """Return a ``policy``, FlagGems' choice among configs, that does not measure a config of ours.

    FlagGems stores each measurement, so its store would get the zeros of :func:`_wrap_bench`.
    """

    @wraps(policy)
    def choose_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        for configs in args:
            if isinstance(configs, list) and len(configs) == 1 and isinstance(configs[0], define_launched_config()):
                return configs[0], {}
        return policy.__get__(self, type(self))(*args, **kwargs)

    return choose_config


class _UnsavedWinners(dict[Any, Any]):
    """A tuner's cache of winners in place of a library's own store, which never gets a config of ours.

    The library's store may outlive the process, and holds only what the library itself has measured.
    """

    def __init__(self, stored: Any) -> None:
        super().__init__()
        self._stored = stored

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or key in self._stored

    def __missing__(self, key: Any) -> Any:
        return self._stored[key]

    def __setitem__(self, key: Any, config: Any) -> None:
        if isinstance(config, define_launched_config()):
            super().__setitem__(key, config)
        else:
            self.pop(key, None)
            self._stored[key] = config


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
    return name_function(str(tuner.base_fn.__module__), str(tuner.base_fn.__qualname__)).full


def _adopt_tuner(tuner: Any, policy: Policy) -> AdoptedFunction:
    adopted = tuner.__dict__.get(_ADOPTED_ATTRIBUTE)
    if adopted is None or adopted.tuner is not tuner:
        # A copy of an autotuner has the original's `AdoptedFunction` in its `__dict__`, but needs its own.
        adopted = tuner.__dict__[_ADOPTED_ATTRIBUTE] = AdoptedFunction(
            tuner, policy, reads_cache=tuner.cache_results and not policy.is_exact and policy.winners is None
        )
        # Otherwise Triton would write our single config to its disk cache as the measured best.
        tuner.cache_results = False
        if not isinstance(tuner.cache, dict):
            # With a winners file, what the library has stored is not launched either.
            tuner.cache = _UnsavedWinners(tuner.cache if policy.winners is None else {})
    return adopted  # type: ignore[no-any-return]


class AdoptedFunction:
    """An autotuned function of this process, with its declaration and its tuning keys."""

    def __init__(self, tuner: Any, policy: Policy, *, reads_cache: bool) -> None:
        self._tuner = weakref.ref(tuner)
        self._reads_cache = reads_cache
        self._policy = policy
        self.traced = TracedConfigs(self._find_common_winner)
        self.name = f"{tuner.base_fn.__module__}.{tuner.base_fn.__qualname__}"
        self._calls: dict[Any, TritonCall] = {}
        # Reentrant, because a pruning function may call the kernel.
        self._lock = threading.RLock()
        self._is_left_alone = False
        self._declaration: Declaration | None = None
        _functions.add(self)

    @property
    def tuner(self) -> Any:
        """Triton's autotuner."""
        return self._tuner()

    def choose_configs(self, pruned: list[Any], kwargs: dict[str, Any]) -> list[Any]:
        """Return a list with the one config that a call launches, or ``pruned`` if Triton tunes the key.

        No error of ours may reach the application.
        """
        args = tuple(self.tuner.nargs.values())
        with self._lock:
            if self._is_left_alone:
                return pruned
            if self._declaration is None:
                if reason := explain_non_adoption(self.tuner):
                    self._is_left_alone = True
                    leave_to_framework("Triton", self.name, reason)
                    return pruned
                self._declaration = describe_function(self.tuner, self._policy.numerics)
                account.record_adopted(self.name)
            try:
                call = CallArguments(self._move_cached_config_first(pruned, args, kwargs), args, kwargs)
                return self._find_keyed_call(self._declaration, call).choose_configs(call)
            except Exception as error:
                fault = str(error).partition("\n")[0]
                # If the call itself is wrong, Triton raises the error when it tunes.
                reason = f"a call cannot be evaluated: {type(error).__name__}: {fault}"
                leave_to_framework("Triton", self.name, reason)
                return pruned

    def _find_keyed_call(self, declaration: Declaration, call: CallArguments) -> TritonCall:
        """Return the tuning key of a call; the key's first call makes it."""
        tuner, model = self.tuner, call.model
        texts = tuple(dict.fromkeys(canonical(read_knobs(config)) for config in call.configs))
        problem = make_problem(tuner, call.configs, call.args, call.kwargs)
        tensors = list_tensor_names(tuner, call.args, call.kwargs)
        key = canonical(problem), tensors, model
        if key not in self._calls:
            declaration = replace(declaration, specialize=tuple(problem), tensors=tensors)
            self._calls[key] = TritonCall(tuner, self.name, problem, model, declaration, texts, self._policy)
        return self._calls[key]

    def _move_cached_config_first(self, pruned: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return the configs, with the winner in Triton's disk cache first, if there is one.

        The application ran with that winner before ktuned, so it must not start with a worse config now.
        """
        if not self._reads_cache or is_capturing():
            return pruned
        tuner = self.tuner
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


class _NoCachedConfig(Exception):
    """Raised in place of Triton's measurement when its disk cache has no winner."""


def _raise_no_cached_config() -> None:
    raise _NoCachedConfig


__all__ = ["adopt_class", "adopt_process", "autotune", "explain_non_adoption"]
