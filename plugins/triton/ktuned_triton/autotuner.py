"""The drop-in for ``triton.autotune``: a call launches the best config known now, and the daemon finds a better one.

Where it hooks in
    When Triton's in-memory cache misses, and only then, ``Autotuner.run`` calls ``prune_configs`` for the configs that
    it will measure. By then a subclass's own ``run``, its own store of winners and its own pruning have done their
    work. Our ``prune_configs`` returns a single config, the best one known. Triton puts it into its cache and launches
    it, in this call and in all later calls of the key, by its own code. A better winner later replaces the config in
    that cache. So there is no second launch path, whatever a subclass does to ``run``.

What it patches
    The class ``Autotuner``, once for a process, and ``prune_configs`` and ``_bench`` of each subclass. An instance may
    therefore be made at any time and anywhere. It is adopted if :func:`autotune` made it, or if the process runs under
    ``ktuned run``; every other instance behaves as before.

The three levels
    - :func:`adopt_class` patches the class; the wrappers below it find the instance's :class:`AdoptedFunction`.
    - :class:`AdoptedFunction` finds the tuning key of a call. If the call cannot be described, Triton tunes it.
    - :class:`KeyedCall` is one key: a :class:`~ktuned.dropin.LaunchMachine` decides what is launched, and the object
      carries that out.

What can go wrong
    No error of ours may reach the application: a call that cannot be evaluated is left to Triton, with the reason in
    the log and in the account that ``ktuned run`` prints. In a forked child no thread follows the daemon, so each key
    starts again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, wraps
from pathlib import Path
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
    LaunchMachine,
    Policy,
    Standing,
    account,
    allow_captures,
    carry_out,
    count_launches,
    daemon_link,
    device_model,
    digest_of,
    home_directory,
    is_capturing,
    leave_launch_counts,
    leave_record,
    own_paths,
    spool_directory,
)
from ktuned.model import canonical
from ktuned_triton.artifact import install
from ktuned_triton.call import (
    Call,
    EmptyGrid,
    NotTunable,
    copy_contents,
    evaluate_call,
    find_jit_function,
    list_tensor_names,
    make_problem,
    read_knobs,
)
from ktuned_triton.compile_trace import TracedConfigs, find_tracing_context
from ktuned_triton.declaration import Declaration, describe_function, find_origin
from ktuned_triton.environment import find_deciding_variables

Mode = Literal["background", "wait"]
Upgrade = Literal["once", "never", "always"]
WithoutDaemon = Literal["triton", "first"]

WITHOUT_DAEMON: Final = ("triton", "first")

COUNTS_EVERY_S: Final = 10.0
"""Launch counts are written at most this often, and only when a call is decided."""

_ADOPTED_ATTRIBUTE = "_ktuned"
_OPTIONS_ATTRIBUTE = "_ktuned_options"
_TRACED_ATTRIBUTES = ("configs", "early_config_prune", "perf_model")
"""Attributes of an autotuner that ``torch.compile`` reads while it traces."""

_log = logging.getLogger("ktuned.triton")


@dataclass(frozen=True, slots=True)
class Options:
    """ktuned's options of an autotuned function: see :func:`autotune`."""

    policy: Policy = field(default_factory=Policy)
    pin: str | None = None


_process_options: Options | None = None
"""Options of ``ktuned run``, for all autotuned functions of this process that have none of their own."""


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
    pin: str | None = None,
    numerics: Literal["tolerance", "exact"] = "tolerance",
) -> Callable[[Any], Any]:
    """Tune a ``@triton.jit`` function as ``triton.autotune`` does, in ktuned's daemon.

    A call with a new key launches the best config that the daemon knows. If it knows none, the call launches the first
    config that is left after pruning and that the device can launch. A call never waits for tuning, unless ``mode`` is
    ``"wait"``.

    The arguments up to ``cache_results`` are Triton's. The others are:

    - ``mode``: ``"background"``, or ``"wait"``: the first call of a key waits until its tuning has ended.
    - ``upgrade``: how often a key's config may change in a process: ``"once"``, for the first fresh winner;
      ``"never"`` after its first call; ``"always"``.
    - ``without_daemon``: what a call does where no daemon runs: ``"triton"`` tunes in the call, or the ``"first"``
      config is launched. The call is recorded for a later daemon in both cases.
    - ``pin``: processes with the same pin see the same winners for good.
    - ``numerics``: with ``"exact"`` a winner must reproduce the bits of a key's first config, and no other config is
      launched, with or without a daemon.

    Raises:
        ValueError: an option has no such value.

    Example:
        >>> @autotune(configs=[triton.Config({"BLOCK": 128}), triton.Config({"BLOCK": 256})], key=["size"])
        ... @triton.jit
        ... def scale(x, y, size, BLOCK: tl.constexpr): ...
    """
    if without_daemon not in WITHOUT_DAEMON:
        raise ValueError(f"without_daemon={without_daemon!r}: give one of {', '.join(map(repr, WITHOUT_DAEMON))}")
    options = Options(Policy(mode, upgrade, without_daemon == "first", numerics), pin)
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
        tuner.__dict__[_OPTIONS_ATTRIBUTE] = options
        return tuner

    return decorate


def adopt_process(autotuner: type[Any], mode: str, numerics: str = "tolerance") -> None:
    """Adopt all autotuned functions of this process: for ``ktuned run``."""
    global _process_options
    _process_options = Options(Policy(mode, numerics=numerics))
    adopt_class(autotuner)


def explain_non_adoption(tuner: Any) -> str:
    """Return why an autotuned function is left to Triton for all its calls; empty if it is adopted.

    An adopted function may still have calls that are left to Triton, for a reason in their arguments.
    """
    if reason := _explain_unreachable_class(type(tuner)):
        return reason
    try:
        function = find_jit_function(tuner)
        if any(getattr(config, "ir_override", None) for config in _read_own_configs(tuner)):
            return "a config has an ir_override, a file of its own that replaces the function"
        find_origin(tuner, function)
    except NotTunable as error:
        return str(error)
    return ""


# The class


_adopted_classes: set[type[Any]] = set()


def adopt_class(autotuner: type[Any]) -> None:
    """Patch Triton's ``Autotuner`` and all its subclasses, also later ones; a second call does nothing.

    Raises:
        AttributeError: this version's class has other methods.
    """
    if autotuner in _adopted_classes:
        return
    if not {"prune_configs", "_bench", "run"} <= vars(autotuner).keys():
        raise AttributeError("its Autotuner has no prune_configs")
    _adopted_classes.add(autotuner)
    autotuner.__init__ = _wrap_init(autotuner.__init__)
    for name in _TRACED_ATTRIBUTES:
        setattr(autotuner, name, _make_traced_property(name))
    own_init_subclass = autotuner.__dict__.get("__init_subclass__")

    def init_subclass(cls: type[Any], /, **more: Any) -> None:
        if own_init_subclass is not None:
            own_init_subclass.__func__(cls, **more)
        else:
            super(autotuner, cls).__init_subclass__(**more)
        _adopt_methods(cls)

    autotuner.__init_subclass__ = classmethod(init_subclass)  # type: ignore[assignment]
    pending = [autotuner]
    while pending:
        subclass = pending.pop()
        _adopt_methods(subclass)
        pending += subclass.__subclasses__()


def _wrap_init(make: Callable[..., None]) -> Callable[..., None]:
    """Return an ``__init__`` that announces a library's first autotuned function to the daemon.

    The daemon must import the library, too, which takes as long as here: it starts now, not at the first call.
    """

    @wraps(make)
    def make_and_announce(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        if self.__dict__.get(_OPTIONS_ATTRIBUTE, _process_options) is None:
            return
        library = str(self.base_fn.__module__).partition(".")[0]
        if library in _announced_libraries or library in ("__main__", "__mp_main__"):
            return
        _announced_libraries.add(library)
        with contextlib.suppress(ImportError):
            from ktuned_triton.library import Library

            wanted = Library(library, own_paths()).to_plain()
            daemon_link(None).prepare_library("triton", wanted, dict(find_deciding_variables()))

    return make_and_announce


_announced_libraries: set[str] = set()
"""Libraries that were announced to the daemon."""


def _adopt_methods(cls: type[Any]) -> None:
    """Wrap the two methods that a cache miss calls, if this class defines them."""
    if "prune_configs" in vars(cls):
        cls.prune_configs = _wrap_prune_configs(vars(cls)["prune_configs"])
    if "_bench" in vars(cls):
        cls._bench = _wrap_bench(vars(cls)["_bench"])


def _wrap_prune_configs(prune: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``prune_configs`` that returns the one config to launch; of nested overrides the outermost decides."""

    @wraps(prune)
    def prune_configs(self: Any, kwargs: dict[str, Any]) -> Any:
        options = self.__dict__.get(_OPTIONS_ATTRIBUTE, _process_options)
        # `kwargs` is part of it because a pruning function may itself call the kernel with other arguments.
        pruning = threading.get_ident(), id(self), id(kwargs)
        # A launch passes `warmup=False`; `Autotuner.warmup` compiles all configs and passes nothing.
        if options is None or kwargs.get("warmup", True) or pruning in _running_prunings:
            return prune(self, kwargs)
        _running_prunings.add(pruning)
        # A call of the kernel within the pruning resets `nargs`; we restore it.
        arguments = self.nargs
        try:
            pruned = list(prune(self, kwargs))
        finally:
            _running_prunings.discard(pruning)
            self.nargs = arguments
        if len(pruned) < 2:
            return pruned
        return _adopt_tuner(self, options).choose_configs(pruned, kwargs)

    return prune_configs


_running_prunings: set[tuple[int, int, int]] = set()
"""Prunings that are running, as (thread, autotuner, arguments): an override that calls its parent's is one pruning."""


def _wrap_bench(bench: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``_bench`` that does not time a config of ours; Triton before 3.8 times even a single config."""

    @wraps(bench)
    def _bench(self: Any, *args: Any, config: Any, **meta: Any) -> Any:
        if isinstance(config, _define_launched_config()):
            return [0.0, 0.0, 0.0]
        return bench(self, *args, config=config, **meta)

    return _bench


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


def _explain_unreachable_class(cls: type[Any]) -> str:
    """Return why our ``prune_configs`` does not see a subclass's calls; empty if it does."""
    for base in cls.__mro__:
        if base.__module__.startswith("triton."):
            break
        run = vars(base).get("run")
        code = getattr(run, "__code__", None)
        if run is None or (code is not None and {"prune_configs", "run"} & {*code.co_names}):
            continue
        return f"{base.__module__}.{base.__qualname__} has a run of its own, which never asks Triton's for configs"
    return ""


@cache
def _define_launched_config() -> type[Any]:
    """Define the class of the configs that we put into Triton's cache; here, because Triton must be imported first."""
    from triton.runtime.autotuner import Config

    class LaunchedConfig(Config):  # type: ignore[misc]
        """A config in Triton's cache for one key; it counts its launches."""

        __slots__ = ("_given", "keyed_call")

        def __init__(self, config: Any, call: KeyedCall) -> None:
            self.__dict__.update(vars(config))
            self._given = config.all_kwargs()
            self.keyed_call = call

        def all_kwargs(self) -> dict[str, Any]:
            # Triton calls this once for each launch, so this is where launches are counted.
            self.keyed_call.counter.launches += 1
            given: dict[str, Any] = self._given
            return given

        def __hash__(self) -> int:
            return id(self)

        def __eq__(self, other: object) -> bool:
            return self is other or Config.__eq__(self, other)

    return LaunchedConfig


@cache
def _define_passing_config() -> type[Any]:
    class PassingConfig(_define_launched_config()):  # type: ignore[misc]
        """A config for one launch: Triton reads ``pre_hook`` before the launch, and then it leaves Triton's cache."""

        __slots__ = ()

        @property
        def pre_hook(self) -> Any:
            self.keyed_call.forget_config(self)
            return self.__dict__["pre_hook"]

    return PassingConfig


# One function


def _adopt_tuner(tuner: Any, options: Options) -> AdoptedFunction:
    adopted = tuner.__dict__.get(_ADOPTED_ATTRIBUTE)
    if adopted is None or adopted.tuner is not tuner:
        # A copied autotuner has its original's state in its `__dict__`, but is a function of its own.
        adopted = tuner.__dict__[_ADOPTED_ATTRIBUTE] = AdoptedFunction(
            tuner, options, reads_cache=tuner.cache_results and not options.policy.is_exact
        )
        # Otherwise Triton would write our single config to its disk cache as the best of all.
        tuner.cache_results = False
    return adopted  # type: ignore[no-any-return]


class AdoptedFunction:
    """An autotuned function of this process: how another process finds it, and its tuning keys."""

    def __init__(self, tuner: Any, options: Options, *, reads_cache: bool) -> None:
        self._tuner = weakref.ref(tuner)
        self._reads_cache = reads_cache
        self.options = options
        self.traced = TracedConfigs(self._find_common_winner)
        self.name = f"{tuner.base_fn.__module__}.{tuner.base_fn.__qualname__}"
        self._calls: dict[str, KeyedCall] = {}
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
        """Return the one config that a call launches, in a list; ``pruned`` if Triton tunes the key."""
        args = tuple(self.tuner.nargs.values())
        with self._lock:
            if self._is_left_alone:
                return pruned
            if self._declaration is None:
                if reason := explain_non_adoption(self.tuner):
                    self._is_left_alone = True
                    self.leave_alone(self.name, reason)
                    return pruned
                self._declaration = replace(describe_function(self.tuner), numerics=self.options.policy.numerics)
                account.record_adopted(self.name)
            try:
                pruned = self._move_cached_config_first(pruned, args, kwargs)
                call = self._find_keyed_call(self._declaration, pruned, args, kwargs)
                return call.choose_configs(pruned, args, kwargs)
            except EmptyGrid:
                return pruned[:1]
            except Exception as error:
                fault = str(error).partition("\n")[0]
                # If the call itself is wrong, Triton will raise the error.
                self.leave_alone(self.name, f"a call cannot be evaluated: {type(error).__name__}: {fault}")
                return pruned

    def _find_keyed_call(
        self, declaration: Declaration, pruned: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> KeyedCall:
        """Return the tuning key of a call; it is made when its first call comes."""
        texts = tuple(dict.fromkeys(canonical(read_knobs(config)) for config in pruned))
        problem = make_problem(self.tuner, args, kwargs)
        evaluated: EvaluatedCall | None = None
        if declaration.hooks and not is_capturing():
            # Whether the hooks are user code is part of the kernel's identity, so the call is evaluated first.
            evaluated = EvaluatedCall.from_arguments(self.tuner, pruned, args, kwargs)
        declaration = declaration.for_key(
            tuple(problem),
            list_tensor_names(self.tuner, args, kwargs),
            texts,
            needs_hooks=evaluated is not None and evaluated.needs_hooks,
        )
        device = _find_device_model(args, kwargs)
        call_id = f"{declaration.identity} {device} {canonical(problem)} {digest_of(repr(texts))}"
        if call_id not in self._calls:
            key = CallKey(declaration.identity, problem, device or None)
            self._calls[call_id] = KeyedCall(self, key, declaration, texts)
        self._calls[call_id].evaluated = evaluated
        return self._calls[call_id]

    def _move_cached_config_first(self, pruned: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return the configs, first the winner that Triton once found and kept in its cache on disk.

        The application ran with that winner before ktuned, so it must not start with a worse config now.
        """
        if not self._reads_cache or is_capturing():
            return pruned
        key, tuner = _make_tritons_key(self.tuner, args, kwargs), self.tuner
        try:
            tuner.check_disk_cache(key, pruned, _raise_no_cached_config)
        except _NoCachedConfig:
            return pruned
        except Exception as error:
            _log.info("Triton's cache of %s cannot be read: %s", self.name, error)
            return pruned
        # Triton has put it into its in-memory cache, where our decision goes.
        cached_config = tuner.cache.pop(key, None)
        return sorted(pruned, key=lambda config: config != cached_config)

    def leave_alone(self, name: str, reason: str) -> None:
        """Report that the function, or one of its keys, is left to Triton."""
        account.record_left_alone(name, reason)
        _log.info("%s is left to Triton: %s", name, reason)

    def restart_after_fork(self) -> None:
        """Start again in a forked child: another thread may have held the lock, and no thread follows the daemon."""
        self._lock = threading.RLock()
        for call in self._calls.values():
            carry_out(call.machine, Forked(), call)

    def _find_common_winner(self) -> list[Any]:
        """Return the one winner of all this process's keys, in a list; an empty list if they differ."""
        calls = list(self._calls.values())
        texts = {call.machine.config if call.machine.standing is Standing.WINNER else "" for call in calls}
        return [calls[0].configs[calls[0].machine.config]] if len(texts) == 1 and "" not in texts else []


class KeyedCall:
    """One tuning key of a function: carries out what its machine decides (:class:`ktuned.dropin.Host`)."""

    def __init__(
        self, function: AdoptedFunction, key: CallKey, declaration: Declaration, texts: tuple[str, ...]
    ) -> None:
        self.machine = LaunchMachine(function.options.policy, texts)
        self.counter = count_launches(key)
        self.configs: dict[str, Any] = {}
        self._function = function
        self._key = key
        self._declaration = declaration
        self._link = daemon_link(function.options.pin)
        self._name = f"{function.name} {canonical(dict(key.problem))}"
        self._launched: Any = None
        self._device = 0
        self._call: Call | None = None
        # The rest is set while a call is decided, and cleared after it.
        self.evaluated: EvaluatedCall | None = None
        self._pruned: list[Any] = []
        self._args: tuple[Any, ...] = ()
        self._kwargs: dict[str, Any] | None = None

    def choose_configs(self, pruned: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return the one config that a call launches, in a list; ``pruned`` if Triton tunes the key."""
        self.configs = {canonical(read_knobs(config)): config for config in pruned}
        self._pruned, self._args, self._kwargs = pruned, args, kwargs
        self._device = _find_device_index(args, kwargs)
        try:
            is_captured = is_capturing()
            carry_out(self.machine, Called(is_captured), self)
            if not is_captured and self.machine.standing is not Standing.FRAMEWORK:
                leave_launch_counts(at_most_every_s=COUNTS_EVERY_S)
            if self.machine.standing is Standing.FRAMEWORK:
                return pruned
            if self.machine.standing is not Standing.NEW:
                # Triton lost our config (another thread, a cleared cache): give it the same one again.
                self.launch_config(self.machine.config, once=False)
            return [self._launched]
        except EmptyGrid:
            # An empty call says nothing about its key: launch the first config once; the next call decides.
            self.machine = LaunchMachine(self._function.options.policy, self.machine.configs)
            self.launch_config(self.machine.configs[0], once=True)
            return [self._launched]
        finally:
            # Do not keep the application's tensors alive.
            self._pruned, self._args, self._kwargs, self.evaluated = [], (), None, None

    # What the machine orders (ktuned.dropin.Host)

    def ask_daemon(self) -> Answer | None:
        """Return what the daemon knows about the key."""
        answer = self._link.ask_about(self._key)
        if answer is not None and answer.is_final and not answer.is_open:
            account.record_key(self._name, TUNED)
        return answer

    def record_call(self) -> str:
        """Write the call to the spool; return why that is impossible, else an empty string."""
        try:
            evaluated = self.evaluated
            if evaluated is None:
                evaluated = EvaluatedCall.from_arguments(
                    self._function.tuner, self._pruned, self._args, self._kwargs or {}
                )
            self._call = evaluated.call
            record = _make_call_record(self._key, self._declaration, evaluated)
            leave_record(spool_directory(home_directory()), record)
        except (NotTunable, OSError) as error:
            return str(error)
        if getattr(self._function.tuner, "_do_bench", None) is not None and not self._declaration.is_timed_by_graph:
            account.record_note(f"{self._function.name} has its own do_bench; ktuned times it in ktuned's way")
        account.record_key(self._name, RECORDED)
        return ""

    def await_tuning(self) -> Answer | None:
        """Wait until the key's tuning has ended; return the daemon's answer."""
        answer = self._link.await_tuning(self._key)
        if answer is not None and answer.is_final:
            account.record_key(self._name, TUNED)
        elif answer is not None:
            self._report_failure(answer)
        return answer

    def follow_key(self) -> None:
        """Have the daemon report later answers."""
        self._link.follow_key(self._key, self._on_answer)

    def _on_answer(self, answer: Answer) -> bool:
        if answer.is_final:
            account.record_key(self._name, TUNED)
        else:
            self._report_failure(answer)
        carry_out(self.machine, Followed(answer), self)
        return self.machine.is_followed

    def _report_failure(self, answer: Answer) -> None:
        reason = (answer.message or "its tuning ended without a winner").partition("\n")[0]
        _log.warning("%s is not tuned: %s", self._function.name, reason)
        account.record_key(self._name, f"not tuned: {reason}")

    def load_config(self, config: str, artifact: str | None) -> bool:
        """Load a config before its first launch: its artifact goes into Triton's cache, else it is compiled here.

        Returns:
            whether the device can launch it.
        """
        if artifact is not None:
            _install_artifact(artifact)
        try:
            kernel = self._compile_config(config)
            # Loads the machine code; raises if the device lacks a resource that it needs.
            getattr(kernel, "_init_handles", lambda: None)()
        except _list_unfit_errors() as error:
            _log.info("%s cannot launch %s: %s", self._function.name, config, str(error).partition("\n")[0])
            return False
        return True

    def _compile_config(self, config: str) -> Any:
        chosen = self.configs[config]
        function = self._function.tuner.fn
        if self._kwargs is not None:
            arguments = {**self._kwargs, **chosen.all_kwargs()}
            if chosen.pre_hook is not None:
                # The hook may reshape a descriptor, and its block shape is compiled in.
                chosen.pre_hook({**dict(zip(self._function.tuner.arg_names, self._args, strict=False)), **arguments})
            return function.run(*self._args, **{**arguments, "warmup": True})
        if self._call is None:
            return None
        return _compile_recorded_call(find_jit_function(function), self._call, config, self._device)

    def launch_config(self, config: str, *, once: bool) -> None:
        """Have calls launch a config, by putting it into Triton's cache in place of the key's former one.

        A key that is not in the cache yet gets it from this call, when ``prune_configs`` returns it.
        """
        kind = _define_passing_config() if once else _define_launched_config()
        self._launched = kind(self.configs[config], self)
        cached = self._function.tuner.cache if self._function.tuner is not None else {}
        for key, value in list(cached.items()):
            if isinstance(value, _define_launched_config()) and value.keyed_call is self:
                cached[key] = self._launched

    def let_framework_tune(self, reason: str) -> None:
        """Leave the key to Triton."""
        self._function.leave_alone(self._name, reason)

    def forget_config(self, config: Any) -> None:
        """Remove a config from Triton's cache, so that the key's next call is decided anew."""
        cached = self._function.tuner.cache
        for key, value in list(cached.items()):
            if value is config:
                cached.pop(key, None)


_functions: weakref.WeakSet[AdoptedFunction] = weakref.WeakSet()


def _restart_functions_after_fork() -> None:
    for function in list(_functions):
        function.restart_after_fork()


os.register_at_fork(after_in_child=_restart_functions_after_fork)


@dataclass(frozen=True)
class EvaluatedCall:
    """A call as plain data.

    Attributes:
        call: the data.
        copies: copies of the tensors whose content the tuning needs, by name.
        needs_hooks: whether its hooks must run as user code.
    """

    call: Call
    copies: Mapping[str, Any]
    needs_hooks: bool

    @classmethod
    def from_arguments(
        cls, tuner: Any, pruned: list[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> EvaluatedCall:
        """Evaluate a call.

        Raises:
            NotTunable: another process cannot make it.
            EmptyGrid: the call launches nothing.
        """
        call, captured, needs_hooks = evaluate_call(tuner, pruned, args, kwargs)
        return cls(call, copy_contents(captured, call.tensors) if captured else {}, needs_hooks)


def _make_call_record(key: CallKey, declaration: Declaration, evaluated: EvaluatedCall) -> CallRecord:
    """Return the record of a call, for the spool.

    Raises:
        NotTunable: its hooks are user code that no other process can import.
    """
    files, call, origin = declaration.files, evaluated.call, declaration.origin
    if evaluated.copies:
        from safetensors.torch import save

        data = save(dict(evaluated.copies))
        name = f"{digest_of(data)}.safetensors"
        files[name] = data
        call = replace(call, content=name)
    if evaluated.needs_hooks and not origin.is_findable:
        raise NotTunable("it has hooks that do more than zero or reshape, and no other process can import them")
    return CallRecord(
        tool="triton",
        package=origin.package,
        release=origin.release,
        function=origin.function,
        identity=key.identity,
        declaration=declaration.to_plain(),
        problem=dict(key.problem),
        call=call.to_json(),
        python=sys.executable,
        configs=tuple(json.loads(text) for text in call.recipes),
        files=files,
        variables=dict(declaration.variables),
        device=key.device or "",
        module=origin.module,
    )


class _NoCachedConfig(Exception):
    """Raised where Triton would measure because its disk cache has no winner."""


def _raise_no_cached_config() -> None:
    raise _NoCachedConfig


def _make_tritons_key(tuner: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a call's tuning key exactly as Triton computes it."""
    arguments = {**dict(zip(tuner.arg_names, args, strict=False)), **kwargs}
    arguments = {name: value for name, value in arguments.items() if name in tuner.arg_names}
    key = [arguments[name] for name in tuner.keys if name in arguments]
    return tuple(key + [str(value.dtype) for value in arguments.values() if hasattr(value, "dtype")])


@cache
def _list_unfit_errors() -> tuple[type[Exception], ...]:
    """Return the error types that Triton's own tuning takes for a config that does not fit."""
    from triton.compiler import errors as compiling
    from triton.runtime import errors as running

    places = ((running, "OutOfResources"), (compiling, "CompileTimeAssertionFailure"), (running, "PTXASError"))
    return tuple(getattr(module, name) for module, name in places if hasattr(module, name))


def _find_device_index(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    return int(getattr(_find_first_device(args, kwargs), "index", None) or 0)


def _find_device_model(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return the GPU model of a call's first tensor; empty if it is not on a GPU."""
    device = _find_first_device(args, kwargs)
    return (device_model(device.index or 0) or "") if getattr(device, "type", None) == "cuda" else ""


def _find_first_device(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    for value in (*args, *kwargs.values()):
        device = getattr(getattr(value, "base", value), "device", None)
        if device is not None:
            return device
    return None


def _install_artifact(artifact: str) -> None:
    """Put a winner into Triton's cache, so that nothing is compiled; if that fails, Triton compiles it."""
    try:
        install(artifact)
    except (OSError, ValueError, KeyError) as error:
        _log.info("%s cannot be put into Triton's cache: %s", artifact, error)


def _compile_recorded_call(function: Any, call: Call, config: str, device: int) -> Any:
    """Compile a config for a recorded call, in the thread that follows the daemon while the application runs."""
    import torch

    from ktuned_triton.library import Library
    from ktuned_triton.signature import make_call_arguments

    allow_captures()
    build = call.make_build(config, "function", library=Library().to_plain())
    with torch.cuda.device(device) if torch.cuda.is_available() else contextlib.nullcontext():
        return function.run(
            **make_call_arguments(function, build, Path()), grid=build.grid, warmup=True, **build.compiler_options
        )


__all__ = ["KeyedCall", "Options", "adopt_class", "adopt_process", "autotune", "explain_non_adoption"]
