"""The drop-in for ``triton.autotune``: a call launches the best config known now, and the daemon finds a better one.

The place to stand is what Triton's own class does when its cache misses. There, and only there, ``Autotuner.run`` asks
``prune_configs`` for the configs that it is to measure; a subclass's own ``run``, its own store of winners and its own
pruning have been at work by then, as their authors meant. The answer here is one config, the best that is known: Triton
puts it into its cache and launches it, now and for all later calls of the key, by its own code. A winner that comes
later takes the config's place in that cache. So there is no second launch path, whatever a subclass does to ``run``.

What is changed is the class, once for a process, and each subclass's own ``prune_configs`` and ``_bench``: instances
are seen wherever, and whenever, they were made. An instance is adopted if :func:`autotune` made it, or if the process
runs under ``ktuned run``; all others behave as before.
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
    LeftAlone,
    NothingToLaunch,
    contents,
    evaluate,
    jitted,
    key_of,
    knobs,
    tensor_names,
)
from ktuned_triton.compile_trace import Traced, tracing_context
from ktuned_triton.declaration import Declaration, describe_function, find_origin
from ktuned_triton.environment import deciding_variables

Mode = Literal["background", "wait"]
Upgrade = Literal["once", "never", "always"]
WithoutDaemon = Literal["triton", "first"]

WITHOUT_DAEMON: Final = ("triton", "first")

COUNTS_EVERY_S: Final = 10.0
"""Counts of launches are left beside a new record, but no oftener than this."""

_STATE = "_ktuned"
_OPTIONS = "_ktuned_options"
_TRACED = ("configs", "early_config_prune", "perf_model")
"""Attributes that ``torch.compile`` reads of an autotuner while it traces."""

_log = logging.getLogger("ktuned.triton")


@dataclass(frozen=True, slots=True)
class Options:
    """Options of an autotuned function besides Triton's: see :func:`autotune`."""

    policy: Policy = field(default_factory=Policy)
    pin: str | None = None


_process_options: Options | None = None
"""Options of all autotuned functions of this process that have none of their own: those of ``ktuned run``."""


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

    A call with a new key launches the best config that the daemon knows, else the
    first that the pruning leaves and the device can launch; it never waits for tuning, unless ``mode`` is ``"wait"``.

    The arguments up to ``cache_results`` are Triton's. ``mode`` is ``"background"``, or ``"wait"``: the first call of a
    key waits for its tuning. ``upgrade`` says how often a key's config may change in a process: ``"once"``, for the
    first fresh winner; ``"never"`` after its first call; ``"always"``. Where no daemon runs the call is recorded all
    the same, and ``without_daemon`` says whether ``"triton"`` tunes in the call or the ``"first"`` config is launched.
    Processes with the same ``pin`` see the same winners for good. With ``numerics="exact"`` only configs win that leave
    the bits of a key's first config, and no other is launched, with a daemon or without.

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
        made = Autotuner(
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
        made.__dict__[_OPTIONS] = options
        return made

    return decorate


def adopt_process(autotuner: type[Any], mode: str, numerics: str = "tolerance") -> None:
    """Adopt all autotuned functions of this process: for ``ktuned run``."""
    global _process_options
    _process_options = Options(Policy(mode, numerics=numerics))
    adopt_class(autotuner)


def why_not_adopted(tuner: Any) -> str:
    """Return why an autotuned function is left to Triton whatever it is called with; empty if it is adopted.

    A reason that a call alone shows (an argument that no other process can make) is not among them.
    """
    if reason := _why_out_of_reach(type(tuner)):
        return reason
    try:
        function = jitted(tuner)
        if any(getattr(config, "ir_override", None) for config in _own_configs(tuner)):
            return "a config has an ir_override, a file of its own that replaces the function"
        find_origin(tuner, function)
    except LeftAlone as error:
        return str(error)
    return ""


# The class


_adopted_classes: set[type[Any]] = set()


def adopt_class(autotuner: type[Any]) -> None:
    """Have Triton's ``Autotuner``, and all that derives from it, ask here when its cache misses. Once for a process."""
    if autotuner in _adopted_classes:
        return
    if not {"prune_configs", "_bench", "run"} <= vars(autotuner).keys():
        raise AttributeError("its Autotuner has no prune_configs")
    _adopted_classes.add(autotuner)
    autotuner.__init__ = _announcing(autotuner.__init__)
    for name in _TRACED:
        setattr(autotuner, name, _while_tracing(name))
    made = autotuner.__dict__.get("__init_subclass__")

    def init_subclass(cls: type[Any], /, **more: Any) -> None:
        if made is not None:
            made.__func__(cls, **more)
        else:
            super(autotuner, cls).__init_subclass__(**more)
        _adopt_methods(cls)

    autotuner.__init_subclass__ = classmethod(init_subclass)  # type: ignore[assignment]
    known = [autotuner]
    while known:
        one = known.pop()
        _adopt_methods(one)
        known += one.__subclasses__()


def _announcing(make: Callable[..., None]) -> Callable[..., None]:
    """Return an ``__init__`` that tells the daemon of a library's first autotuned function: it will be imported there,
    too, and that takes as long as here.
    """

    @wraps(make)
    def make_and_announce(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        if self.__dict__.get(_OPTIONS, _process_options) is None:
            return
        library = str(self.base_fn.__module__).partition(".")[0]
        if library in _announced or library in ("__main__", "__mp_main__"):
            return
        _announced.add(library)
        with contextlib.suppress(ImportError):
            from ktuned_triton.library import Library

            wanted = Library(library, own_paths()).to_plain()
            daemon_link(None).prepare_library("triton", wanted, dict(deciding_variables()))

    return make_and_announce


_announced: set[str] = set()
"""The libraries that the daemon was told of."""


def _adopt_methods(cls: type[Any]) -> None:
    """Wrap the two methods that a cache miss calls, where a class defines them itself."""
    if "prune_configs" in vars(cls):
        cls.prune_configs = _deciding(vars(cls)["prune_configs"])
    if "_bench" in vars(cls):
        cls._bench = _measuring_nothing(vars(cls)["_bench"])


def _deciding(prune: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``prune_configs`` that gives the one config to launch; the outermost of a class's decides."""

    @wraps(prune)
    def prune_configs(self: Any, kwargs: dict[str, Any]) -> Any:
        options = self.__dict__.get(_OPTIONS, _process_options)
        # A pruning may call the kernel itself, which is another call with other arguments.
        place = threading.get_ident(), id(self), id(kwargs)
        # A launch says `warmup=False`; `Autotuner.warmup` compiles all configs and says nothing.
        if options is None or kwargs.get("warmup", True) or place in _pruning:
            return prune(self, kwargs)
        _pruning.add(place)
        # That other call would leave no arguments behind.
        arguments = self.nargs
        try:
            pruned = list(prune(self, kwargs))
        finally:
            _pruning.discard(place)
            self.nargs = arguments
        if len(pruned) < 2:
            return pruned
        return _adopted(self, options).decide(pruned, kwargs)

    return prune_configs


_pruning: set[tuple[int, int, int]] = set()
"""The prunings that run, by thread, autotuner and arguments: of several classes' methods the outermost decides."""


def _measuring_nothing(bench: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``_bench`` that takes a config which was decided on as it is: Triton before 3.8 times a single one."""

    @wraps(bench)
    def _bench(self: Any, *args: Any, config: Any, **meta: Any) -> Any:
        return [0.0, 0.0, 0.0] if isinstance(config, _launched_config()) else bench(self, *args, config=config, **meta)

    return _bench


def _while_tracing(name: str) -> property:
    """Return an attribute that shows a trace of ``torch.compile`` one config, if all keys have the same winner."""

    def read(self: Any) -> Any:
        # Each launch comes by here.
        if tracing_context() is not None:
            adopted = self.__dict__.get(_STATE)
            if adopted is not None and (only := adopted.traced.configs()):
                # A single config is neither pruned nor ranked.
                return only if name == "configs" else None
        try:
            return self.__dict__[name]
        except KeyError:
            raise AttributeError(name) from None

    def write(self: Any, value: Any) -> None:
        self.__dict__[name] = value

    return property(read, write)


def _own_configs(tuner: Any) -> list[Any]:
    configs: list[Any] = tuner.__dict__["configs"]
    return configs


def _why_out_of_reach(cls: type[Any]) -> str:
    """Return why the calls of a subclass do not come by here; empty if they do."""
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
def _launched_config() -> type[Any]:
    from triton.runtime.autotuner import Config

    class LaunchedConfig(Config):  # type: ignore[misc]
        """A config as Triton's cache has it for one key; it counts its launches."""

        __slots__ = ("_given", "keyed_call")

        def __init__(self, config: Any, call: KeyedCall) -> None:
            self.__dict__.update(vars(config))
            self._given = config.all_kwargs()
            self.keyed_call = call

        def all_kwargs(self) -> dict[str, Any]:
            # Triton makes this map anew for each launch.
            self.keyed_call.counter.launches += 1
            given: dict[str, Any] = self._given
            return given

        def __hash__(self) -> int:
            return id(self)

        def __eq__(self, other: object) -> bool:
            return self is other or Config.__eq__(self, other)

    return LaunchedConfig


@cache
def _passing_config() -> type[Any]:
    class PassingConfig(_launched_config()):  # type: ignore[misc]
        """A config that is launched once: it leaves Triton's cache as soon as Triton has taken it out of there."""

        __slots__ = ()

        @property
        def pre_hook(self) -> Any:
            self.keyed_call.forget_config(self)
            return self.__dict__["pre_hook"]

    return PassingConfig


# One function


def _adopted(tuner: Any, options: Options) -> AdoptedFunction:
    found = tuner.__dict__.get(_STATE)
    if found is None or found.tuner is not tuner:
        # A copy of an autotuner is a function of its own.
        found = tuner.__dict__[_STATE] = AdoptedFunction(
            tuner, options, reads_cache=tuner.cache_results and not options.policy.is_exact
        )
        # Triton would keep the one config that is decided on as the best of all.
        tuner.cache_results = False
    return found  # type: ignore[no-any-return]


class AdoptedFunction:
    """An autotuned function of this process: how another process finds it, and its keys."""

    def __init__(self, tuner: Any, options: Options, *, reads_cache: bool) -> None:
        self._tuner = weakref.ref(tuner)
        self._reads_cache = reads_cache
        self.options = options
        self.traced = Traced(self._agreed)
        self.name = f"{tuner.base_fn.__module__}.{tuner.base_fn.__qualname__}"
        self._calls: dict[str, KeyedCall] = {}
        # A function that prunes configs may call the kernel.
        self._lock = threading.RLock()
        self._is_left_alone = False
        self._declaration: Declaration | None = None
        _functions.add(self)

    @property
    def tuner(self) -> Any:
        """Triton's object."""
        return self._tuner()

    def decide(self, pruned: list[Any], kwargs: dict[str, Any]) -> list[Any]:
        """Return the one config that a call is to launch, in a list; ``pruned`` where Triton is to tune."""
        args = tuple(self.tuner.nargs.values())
        with self._lock:
            if self._is_left_alone:
                return pruned
            if self._declaration is None:
                if reason := why_not_adopted(self.tuner):
                    self._is_left_alone = True
                    self.leave_alone(self.name, reason)
                    return pruned
                self._declaration = replace(describe_function(self.tuner), numerics=self.options.policy.numerics)
                account.record_adopted(self.name)
            try:
                pruned = self._cached_first(pruned, args, kwargs)
                return self._call_of(self._declaration, pruned, args, kwargs).decide(pruned, args, kwargs)
            except NothingToLaunch:
                return pruned[:1]
            except Exception as error:
                fault = str(error).partition("\n")[0]
                # Where the call is at fault, Triton says so itself.
                self.leave_alone(self.name, f"a call cannot be evaluated: {type(error).__name__}: {fault}")
                return pruned

    def _call_of(
        self, declaration: Declaration, pruned: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> KeyedCall:
        texts = tuple(dict.fromkeys(canonical(knobs(config)) for config in pruned))
        problem = key_of(self.tuner, args, kwargs)
        evaluated: EvaluatedCall | None = None
        if declaration.hooks and not is_capturing():
            # What its hooks do decides which kernel it is.
            evaluated = EvaluatedCall.of(self.tuner, pruned, args, kwargs)
        declaration = declaration.for_key(
            tuple(problem),
            tensor_names(self.tuner, args, kwargs),
            texts,
            needs_hooks=evaluated is not None and evaluated.needs_hooks,
        )
        device = _model(args, kwargs)
        place = f"{declaration.identity} {device} {canonical(problem)} {digest_of(repr(texts))}"
        if place not in self._calls:
            key = CallKey(declaration.identity, problem, device)
            self._calls[place] = KeyedCall(self, key, declaration, texts)
        self._calls[place].evaluated = evaluated
        return self._calls[place]

    def _cached_first(self, pruned: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return the configs with the one first that Triton itself has found before, and kept in its cache on the disk.

        The application had that answer before ktuned; until there is a better one it gets no worse.
        """
        if not self._reads_cache or is_capturing():
            return pruned
        key, tuner = _tritons_key(self.tuner, args, kwargs), self.tuner
        try:
            tuner.check_disk_cache(key, pruned, _nothing_kept)
        except _NothingKept:
            return pruned
        except Exception as error:
            _log.info("Triton's cache of %s cannot be read: %s", self.name, error)
            return pruned
        # It has put it where this call's decision goes.
        kept = tuner.cache.pop(key, None)
        return sorted(pruned, key=lambda config: config != kept)

    def leave_alone(self, name: str, reason: str) -> None:
        """Note that the function, or one of its keys, is Triton's."""
        account.record_left_alone(name, reason)
        _log.info("%s is left to Triton: %s", name, reason)

    def forked(self) -> None:
        """Begin again in a forked child: another thread may have held the lock, and nobody follows."""
        self._lock = threading.RLock()
        for call in self._calls.values():
            carry_out(call.machine, Forked(), call)

    def _agreed(self) -> list[Any]:
        """Return the winner of all keys that this process knows, in a list; nothing where they differ."""
        calls = list(self._calls.values())
        texts = {call.machine.config if call.machine.standing is Standing.WINNER else "" for call in calls}
        return [calls[0].configs[calls[0].machine.config]] if len(texts) == 1 and "" not in texts else []


class KeyedCall:
    """One tuning key of a function: carries out what its machine decides (:class:`ktuned.dropin.Host`)."""

    def __init__(
        self, function: AdoptedFunction, key: CallKey, declaration: Declaration, texts: tuple[str, ...]
    ) -> None:
        self.machine = LaunchMachine(function.options.policy, texts)
        self.counter = count_launches(key.identity, key.problem, key.device)
        self.configs: dict[str, Any] = {}
        self._function = function
        self._key = key
        self._declaration = declaration
        self._link = daemon_link(function.options.pin)
        self._name = f"{function.name} {canonical(dict(key.problem))}"
        self._launched: Any = None
        self._device = 0
        self._call: Call | None = None
        # Of the call that is being decided.
        self.evaluated: EvaluatedCall | None = None
        self._pruned: list[Any] = []
        self._args: tuple[Any, ...] = ()
        self._kwargs: dict[str, Any] | None = None

    def decide(self, pruned: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return the one config that a call launches, in a list; ``pruned`` where Triton is to tune."""
        self.configs = {canonical(knobs(config)): config for config in pruned}
        self._pruned, self._args, self._kwargs = pruned, args, kwargs
        self._device = _device_index(args, kwargs)
        try:
            is_captured = is_capturing()
            carry_out(self.machine, Called(is_captured), self)
            if not is_captured and self.machine.standing is not Standing.FRAMEWORK:
                leave_launch_counts(at_most_every_s=COUNTS_EVERY_S)
            if self.machine.standing is Standing.FRAMEWORK:
                return pruned
            if self.machine.standing is not Standing.NEW:
                # Triton has lost it (another thread, a cleared cache): the same again.
                self.launch_config(self.machine.config, once=False)
            return [self._launched]
        except NothingToLaunch:
            # It says nothing of its key, whose next call decides.
            self.machine = LaunchMachine(self._function.options.policy, self.machine.configs)
            self.launch_config(self.machine.configs[0], once=True)
            return [self._launched]
        finally:
            # Tensors are the application's.
            self._pruned, self._args, self._kwargs, self.evaluated = [], (), None, None

    # The host of a machine

    def ask_daemon(self) -> Answer | None:
        """Return what the daemon knows."""
        answer = self._link.ask_about(self._key)
        if answer is not None and answer.is_final and not answer.is_open:
            account.record_key(self._name, TUNED)
        return answer

    def record_call(self) -> str:
        """Leave the call in the spool."""
        try:
            evaluated = self.evaluated
            if evaluated is None:
                evaluated = EvaluatedCall.of(self._function.tuner, self._pruned, self._args, self._kwargs or {})
            self._call = evaluated.call
            record = _record_of(self._key, self._declaration, evaluated)
            leave_record(spool_directory(home_directory()), record)
        except (LeftAlone, OSError) as error:
            return str(error)
        if getattr(self._function.tuner, "_do_bench", None) is not None and not self._declaration.is_timed_by_graph:
            account.record_note(f"{self._function.name} has a do_bench of its own; ktuned times it in its own way")
        account.record_key(self._name, RECORDED)
        return ""

    def await_tuning(self) -> Answer | None:
        """Return what the daemon knows when the key's tuning has ended."""
        answer = self._link.await_tuning(self._key)
        if answer is not None and answer.is_final:
            account.record_key(self._name, TUNED)
        elif answer is not None:
            self._note_failure(answer)
        return answer

    def follow_key(self) -> None:
        """Have later answers reported."""
        self._link.follow_key(self._key, self._on_answer)

    def _on_answer(self, answer: Answer) -> bool:
        if answer.is_final:
            account.record_key(self._name, TUNED)
        else:
            self._note_failure(answer)
        carry_out(self.machine, Followed(answer), self)
        return self.machine.is_followed

    def _note_failure(self, answer: Answer) -> None:
        reason = (answer.message or "its tuning ended without a winner").partition("\n")[0]
        _log.warning("%s is not tuned: %s", self._function.name, reason)
        account.record_key(self._name, f"not tuned: {reason}")

    def load_config(self, config: str, artifact: str | None) -> bool:
        """Load a config before it is launched: from its artifact by way of Triton's cache, else compiled here."""
        if artifact is not None:
            _install(artifact)
        try:
            kernel = self._compiled(config)
            # It loads the machine code, and raises where the device has less than that needs.
            getattr(kernel, "_init_handles", lambda: None)()
        except _unfit_errors() as error:
            _log.info("%s cannot launch %s: %s", self._function.name, config, str(error).partition("\n")[0])
            return False
        return True

    def _compiled(self, config: str) -> Any:
        chosen = self.configs[config]
        function = self._function.tuner.fn
        if self._kwargs is not None:
            given = {**self._kwargs, **chosen.all_kwargs()}
            if chosen.pre_hook is not None:
                # It may reshape a descriptor, which decides what is compiled.
                chosen.pre_hook({**dict(zip(self._function.tuner.arg_names, self._args, strict=False)), **given})
            return function.run(*self._args, **{**given, "warmup": True})
        if self._call is None:
            return None
        return _compiled_apart(jitted(function), self._call, config, self._device)

    def launch_config(self, config: str, *, once: bool) -> None:
        """Have calls launch a config: by its place in Triton's cache, which this call gives it if it has none yet."""
        kind = _passing_config() if once else _launched_config()
        self._launched = kind(self.configs[config], self)
        cached = self._function.tuner.cache if self._function.tuner is not None else {}
        for key, value in list(cached.items()):
            if isinstance(value, _launched_config()) and value.keyed_call is self:
                cached[key] = self._launched

    def let_framework_tune(self, reason: str) -> None:
        """Leave the key to Triton."""
        self._function.leave_alone(self._name, reason)

    def forget_config(self, config: Any) -> None:
        """Take a config out of Triton's cache, so that the key's next call is decided anew."""
        cached = self._function.tuner.cache
        for key, value in list(cached.items()):
            if value is config:
                cached.pop(key, None)


_functions: weakref.WeakSet[AdoptedFunction] = weakref.WeakSet()


def _forked() -> None:
    for function in list(_functions):
        function.forked()


os.register_at_fork(after_in_child=_forked)


@dataclass(frozen=True)
class EvaluatedCall:
    """A call as plain data, copies of the tensors whose content is its own, and whether its hooks are user code."""

    call: Call
    copies: Mapping[str, Any]
    needs_hooks: bool

    @classmethod
    def of(cls, tuner: Any, pruned: list[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> EvaluatedCall:
        """Evaluate a call.

        Raises:
            LeftAlone: another process cannot make it.
            NothingToLaunch: its grid is empty.
        """
        captured: dict[str, Any] = {}
        call, needs_hooks = evaluate(tuner, pruned, args, kwargs, captured)
        return cls(call, contents(captured, call.tensors) if captured else {}, needs_hooks)


def _record_of(key: CallKey, declaration: Declaration, evaluated: EvaluatedCall) -> CallRecord:
    """Return what travels of a call.

    Raises:
        LeftAlone: its hooks are user code, and no other process finds them.
    """
    files, call, origin = declaration.files, evaluated.call, declaration.origin
    if evaluated.copies:
        from safetensors.torch import save

        data = save(dict(evaluated.copies))
        name = f"{digest_of(data)}.safetensors"
        files[name] = data
        call = replace(call, content=name)
    if evaluated.needs_hooks and not origin.is_findable:
        raise LeftAlone("it has hooks that do more than zero or reshape, and are where no other process finds them")
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
        device=key.device,
        module=origin.module,
    )


class _NothingKept(Exception):
    """Ends Triton's look into its cache where it would measure."""


def _nothing_kept() -> None:
    raise _NothingKept


def _tritons_key(tuner: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a call's tuning key as Triton makes it."""
    given = {**dict(zip(tuner.arg_names, args, strict=False)), **kwargs}
    given = {name: value for name, value in given.items() if name in tuner.arg_names}
    key = [given[name] for name in tuner.keys if name in given]
    return tuple(key + [str(value.dtype) for value in given.values() if hasattr(value, "dtype")])


@cache
def _unfit_errors() -> tuple[type[Exception], ...]:
    """Return the errors of configs that Triton's own tuning passes over."""
    from triton.compiler import errors as compiling
    from triton.runtime import errors as running

    places = ((running, "OutOfResources"), (compiling, "CompileTimeAssertionFailure"), (running, "PTXASError"))
    return tuple(getattr(module, name) for module, name in places if hasattr(module, name))


def _device_index(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    return int(getattr(_first_device(args, kwargs), "index", None) or 0)


def _model(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return the model of the GPU that a call's first tensor is on; empty without one."""
    device = _first_device(args, kwargs)
    return (device_model(device.index or 0) or "") if getattr(device, "type", None) == "cuda" else ""


def _first_device(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    for value in (*args, *kwargs.values()):
        device = getattr(getattr(value, "base", value), "device", None)
        if device is not None:
            return device
    return None


def _install(artifact: str) -> None:
    """Put a winner into Triton's cache, so that the call compiles nothing; without it, it compiles."""
    try:
        install(artifact)
    except (OSError, ValueError, KeyError) as error:
        _log.info("%s cannot be put into Triton's cache: %s", artifact, error)


def _compiled_apart(function: Any, call: Call, config: str, device: int) -> Any:
    """Return a config's kernel, compiled for a recorded call beside an application that goes on."""
    import torch

    from ktuned_triton.library import Library
    from ktuned_triton.signature import call_arguments

    allow_captures()
    build = call.build(config, "function", library=Library().to_plain())
    with torch.cuda.device(device) if torch.cuda.is_available() else contextlib.nullcontext():
        return function.run(
            **call_arguments(function, build, Path()), grid=build.grid, warmup=True, **build.compiler_options
        )


__all__ = ["KeyedCall", "Options", "adopt_class", "adopt_process", "autotune", "why_not_adopted"]
