"""The drop-in for ``triton.autotune``: a call launches the best config known now, and the daemon finds a better one."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Literal

from ktuned.dropin import CALL_KEY, account, device_model, digest, own_paths, shared
from ktuned.model import canonical
from ktuned_triton.adoption import FUNCTION_NAME, Adopted, Request
from ktuned_triton.artifact import install
from ktuned_triton.call import (
    DTYPES_KEY,
    Call,
    LeftAlone,
    NothingToLaunch,
    autotuner_in,
    contents,
    evaluate,
    hook_names,
    jitted,
    key_of,
    knobs,
)
from ktuned_triton.compile_trace import Traced
from ktuned_triton.environment import deciding_variables
from ktuned_triton.evaluation import constants_read, evaluation_digest
from ktuned_triton.script import MAIN, is_importable, is_script, module_of

Mode = Literal["background", "wait"]
Upgrade = Literal["once", "never", "always"]
WithoutDaemon = Literal["triton", "first"]

MODES: Final = ("background", "wait")
UPGRADES: Final = ("once", "never", "always")
WITHOUT_DAEMON: Final = ("triton", "first")

READY_S: Final = 5.0
"""Longest wait for a launcher once the winner is known: a config whose compile hangs must not hold up another's."""

_LAUNCH_ONLY = ("grid", "warmup")
"""The arguments that every launch has besides the function's."""

_log = logging.getLogger("ktuned.triton")


@dataclass
class Key:
    """One tuning key of a function on one device: the config that its calls launch, and those that may follow.

    ``is_proven`` says that the config has been launched; until then one that needs more than the device has gives way
    to the next of ``rest``. It ``is_winner`` where the daemon's tuning has found the config, and ``is_settled`` when no
    other one is waited for.
    """

    config: Any
    rest: list[Any] = field(default_factory=list)
    is_proven: bool = False
    is_tritons: bool = False
    is_winner: bool = False
    is_settled: bool = False


@dataclass(frozen=True, slots=True)
class Options:
    """Options of an autotuned function besides Triton's: see :func:`autotune`."""

    mode: Mode = "background"
    upgrade: Upgrade = "once"
    without_daemon: WithoutDaemon = "triton"
    pin: str | None = None

    def __post_init__(self) -> None:
        for name, value, known in (
            ("mode", self.mode, MODES),
            ("upgrade", self.upgrade, UPGRADES),
            ("without_daemon", self.without_daemon, WITHOUT_DAEMON),
        ):
            if value not in known:
                raise ValueError(f"{name}={value!r}: give one of {', '.join(map(repr, known))}")


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
) -> Callable[[Any], Any]:
    """Tune a ``@triton.jit`` function as ``triton.autotune`` does, in ktuned's daemon.

    The first arguments are Triton's. A call with a new key launches the best config that the daemon knows, else the
    first that the pruning leaves and the device can launch; it never waits for tuning, unless ``mode`` is ``"wait"``.
    ``upgrade`` says how often a key's config may change in a process: ``"once"``, for the first fresh winner;
    ``"never"`` after its first call; ``"always"``. ``without_daemon`` leaves the function to ``"triton"``, which tunes
    it in the call, or launches the ``"first"`` config. Processes with the same ``pin`` see the same winners for good.

    A function that another process cannot find or run is left to Triton, and a log entry says why: a closure, an own
    ``do_bench``, arguments that are neither numbers nor tensors. One of a script travels as its source.

    Raises:
        ValueError: an option has no such value.
    """
    options = Options(mode, upgrade, without_daemon, pin)

    def decorate(function: Any) -> Any:
        return autotuner_class()(
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
            options=options,
        )

    return decorate


@cache
def autotuner_class() -> type[Any]:
    """Return the class of autotuned functions: a subclass of Triton's, by which ``torch.compile`` knows them."""
    from triton.compiler import errors as compiling
    from triton.runtime import errors as running
    from triton.runtime.autotuner import Autotuner

    places = (
        (running, "OutOfResources"),
        (compiling, "CompileTimeAssertionFailure"),
        (running, "PTXASError"),
    )
    unfit = tuple(getattr(module, name) for module, name in places if hasattr(module, name))
    """Raised for configs that Triton's own tuning passes over."""

    class KtunedAutotuner(Autotuner):  # type: ignore[misc]
        """An autotuned function whose configs are tuned by ktuned's daemon."""

        def __init__(self, *args: Any, options: Options, **kwargs: Any) -> None:
            self._known: dict[Any, Key] = {}
            self._traced = Traced(self._agreed)
            super().__init__(*args, **kwargs)
            # Triton keeps None apart from its own benchmark; a function of the user's has its own way of measuring.
            self._has_own_bench = kwargs.get("do_bench") is not None
            self._graph = bool(kwargs.get("use_cuda_graph"))
            self._options = options
            # A function that prunes configs may call the kernel.
            self._lock = threading.RLock()
            _tuners.add(self)
            self._is_checked = self._is_tritons = False
            self._script = ""

        def _agreed(self) -> list[Any]:
            """Return the winner of all keys that this process knows, in a list; nothing where they differ."""
            known = list(self._known.values())
            texts = {canonical(knobs(key.config)) if key.is_winner else "" for key in known}
            return [known[0].config] if len(texts) == 1 and "" not in texts else []

        @property
        def configs(self) -> list[Any]:
            """All configs; while ``torch.compile`` traces, the winner alone, if there is one for all keys."""
            return self._traced.configs() or self._all_configs

        @configs.setter
        def configs(self, configs: list[Any]) -> None:
            self._all_configs = configs

        @property
        def early_config_prune(self) -> Any:
            """Triton's own; a single config is not pruned."""
            return None if self._traced.configs() else self._prune

        @early_config_prune.setter
        def early_config_prune(self, prune: Any) -> None:
            self._prune = prune

        @property
        def perf_model(self) -> Any:
            """Triton's own; a single config is not ranked."""
            return None if self._traced.configs() else self._model

        @perf_model.setter
        def perf_model(self, model: Any) -> None:
            self._model = model

        def forked(self) -> None:
            """Begin again in a forked child: another thread may have held the lock, and nothing comes of requests."""
            self._lock = threading.RLock()
            self._known = {place: known for place, known in self._known.items() if known.is_settled}

        def run(self, *args: Any, **kwargs: Any) -> Any:
            """Launch the best config known now."""
            if len(self._all_configs) <= 1 or self._is_tritons or kwargs.get("warmup"):
                return super().run(*args, **kwargs)
            place = self._place(args, kwargs)
            known = self._known.get(place)
            if known is None:
                try:
                    known = self._begin(place, args, kwargs)
                except Exception as error:
                    # Where the call is at fault, Triton says so itself.
                    result = super().run(*args, **kwargs)
                    fault = str(error).partition("\n")[0]
                    self._known[place] = Key(None, is_tritons=True)
                    self._note_left_alone(self._name, f"a call cannot be evaluated: {type(error).__name__}: {fault}")
                    return result
            if known.is_tritons:
                return super().run(*args, **kwargs)
            return self._launch(known, args, kwargs)

        def _place(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
            """Return what stands for a call's key on its device: as `key_of`, for each launch and so with less work."""
            place: list[Any] = [_device(args, kwargs)]
            names = self.arg_names
            for name in self.keys:
                index = names.index(name) if name in names else len(args)
                value = args[index] if index < len(args) else kwargs.get(name)
                # Equal numbers of other types are other keys.
                place += (type(value), value)
            place += [value.dtype for value in args if hasattr(value, "dtype")]
            if len(kwargs) > len(_LAUNCH_ONLY):
                place += [value.dtype for name, value in kwargs.items() if hasattr(value, "dtype") and name in names]
            return tuple(place)

        def _begin(self, place: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Key:
            with self._lock:
                if place in self._known:
                    return self._known[place]
                try:
                    if not self._is_checked:
                        self._check()
                        self._is_checked = True
                except LeftAlone as error:
                    self._leave_alone(str(error))
                    return Key(None, is_tritons=True)
                problem = key_of(self, args, kwargs)
                try:
                    known = self._new(place, problem, args, kwargs)
                except LeftAlone as error:
                    # Another key's call may be one that can be tuned.
                    self._note_left_alone(f"{self._name} {canonical(problem)}", str(error))
                    known = self._known[place] = Key(None, is_tritons=True)
                return known

        def _new(self, place: Any, problem: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Key:
            """Return a new key, for which the daemon has been asked, unless nothing is to be launched.

            Raises:
                LeftAlone: no other process can make its call.
            """
            pruned = self._pruned(args, kwargs)
            known = Key(pruned[0], pruned[1:])
            if is_capturing():
                # Nothing may be asked, copied or loaded now; a later call of the key asks.
                return known
            captured: dict[str, Any] = {}
            try:
                call = evaluate(self, pruned, args, kwargs, captured)
            except NothingToLaunch:
                return known
            by_text = {canonical(knobs(config)): config for config in pruned}
            if not by_text.keys() <= {canonical(knobs(config)) for config in self._all_configs}:
                raise LeftAlone("its pruning makes configs that are not in its list")
            request = Request(self._adopted(call, tuple(problem)), problem, call, device=_model(args, kwargs))
            self._ask(known, request, captured, by_text, place[0])
            self._known[place] = known
            if known.is_tritons:
                self._note_left_alone(self._name, "no daemon runs")
            else:
                account.take_over(self._name)
            return known

        def _ask(
            self, known: Key, request: Request, captured: dict[str, Any], by_text: dict[str, Any], device: int
        ) -> None:
            tunings = shared(self._options.pin)
            best = tunings.best(request)
            if best is None and not tunings.has_daemon():
                known.is_tritons = self._options.without_daemon == "triton"
                return
            is_fresh = best is not None and best.is_fresh
            if self._options.mode == "wait" and not is_fresh:
                ready = None if self._known else _getting_ready(self, request, canonical(knobs(known.config)), device)
                best = tunings.wait(with_contents(request, captured))
                if ready is not None:
                    ready.join(READY_S)
            if best is not None and (config := by_text.get(best.text)) is not None:
                known.config, known.rest = config, [known.config, *known.rest]
                if best.artifact is not None:
                    _install(best.artifact)
            is_fresh = best is not None and best.is_fresh and not tunings.is_open(request)
            known.is_winner = is_fresh and best is not None and best.text in by_text
            if self._options.upgrade == "never" or self._options.mode == "wait":
                if not is_fresh and self._options.mode == "background":
                    tunings.ask(with_contents(request, captured), None)
                return
            if is_fresh and self._options.upgrade == "once":
                known.is_settled = True
                return

            def upgrade(text: str, artifact: str | None) -> bool:
                config = by_text.get(text)
                if config is None:
                    return False
                if config is not known.config:
                    _prepare(self, request, text, artifact, device)
                    known.config, known.is_proven = config, True
                known.is_winner = True
                known.is_settled = self._options.upgrade == "once"
                return self._options.upgrade == "once"

            tunings.ask(with_contents(request, captured), upgrade)

        def _launch(self, known: Key, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            while True:
                config = known.config
                try:
                    result = self._launch_config(config, args, kwargs)
                except unfit:
                    if known.is_proven or not known.rest:
                        raise
                    known.config = known.rest.pop(0)
                    continue
                known.is_proven = True
                return result

        def _launch_config(self, config: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            self.best_config = config
            if config.pre_hook is not None:
                config.pre_hook({**dict(zip(self.arg_names, args, strict=False)), **kwargs, **config.all_kwargs()})
            return self.fn.run(*args, **kwargs, **config.all_kwargs())

        def _pruned(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
            # Triton's own pruning reads the arguments from there.
            self.nargs: dict[str, Any] | None = dict(zip(self.arg_names, args, strict=False))
            try:
                return list(self.prune_configs(kwargs))
            finally:
                self.nargs = None

        def _adopted(self, call: Call, specialize: tuple[str, ...]) -> Adopted:
            function = jitted(self)
            return Adopted(
                module=MAIN if self._script else function.__module__,
                qualname=function.__qualname__,
                cache_key=function.cache_key,
                specialize=specialize,
                configs=tuple(knobs(config) for config in self.configs),
                tensors=tuple(call.tensors),
                timing="graph" if self._graph else "events",
                paths=own_paths(),
                hooks=hook_names(self),
                evaluation=evaluation_digest(self),
                constants=constants_read(function),
                variables=deciding_variables(),
                script=f"script_{digest(self._script)}" if self._script else "",
                source=self._script,
            )

        def _check(self) -> None:
            """Check that another process can find this function and do all that its tuning needs.

            Raises:
                LeftAlone: it cannot; says why.
            """
            function = jitted(self)
            if "<locals>" in function.__qualname__:
                raise LeftAlone("it is defined inside another function, where no other process can find it")
            if is_script(function):
                if hook_names(self):
                    raise LeftAlone("it has hooks, and is defined in __main__, where no other process finds them")
                self._script = module_of(function)
            else:
                self._check_is_found(function)
            if any(getattr(config, "ir_override", None) for config in self.configs):
                raise LeftAlone("a config has an ir_override")
            if self._has_own_bench:
                raise LeftAlone("it has a do_bench of its own, which only its own process can call")
            for key in self.keys:
                if key in (DTYPES_KEY, CALL_KEY):
                    raise LeftAlone(f"its key has an argument {key!r}, a name that ktuned uses itself")

        def _check_is_found(self, function: Any) -> None:
            name = f"{function.__module__}.{function.__qualname__}"
            try:
                found = attrgetter(function.__qualname__)(sys.modules[function.__module__])
            except (KeyError, AttributeError):
                found = None
            if found is None or jitted(found) is not function:
                raise LeftAlone(f"{name} is another function")
            if not is_importable(function.__module__):
                raise LeftAlone(f"no other process can import {function.__module__}")
            if hook_names(self) and autotuner_in(found) is not self:
                raise LeftAlone(f"it has hooks, and {name} is another autotuner, where they cannot be found")

        @property
        def _name(self) -> str:
            return f"{self.base_fn.__module__}.{self.base_fn.__qualname__}"

        def _leave_alone(self, reason: str) -> None:
            self._is_tritons = True
            self._note_left_alone(self._name, reason)

        def _note_left_alone(self, name: str, reason: str) -> None:
            account.leave_alone(name, reason)
            _log.info("%s is left to Triton: %s", name, reason)

    return KtunedAutotuner


_tuners: weakref.WeakSet[Any] = weakref.WeakSet()


def _forked() -> None:
    for tuner in list(_tuners):
        tuner.forked()


os.register_at_fork(after_in_child=_forked)


def with_contents(request: Request, captured: Mapping[str, Any]) -> Request:
    """Return a request with copies of the tensors whose content is the call's own.

    Raises:
        LeftAlone: they cannot be kept.
    """
    return replace(request, content=contents(captured, request.call.tensors)) if captured else request


def is_capturing() -> bool:
    """Return whether a CUDA graph is being captured on the current stream."""
    torch = sys.modules.get("torch")
    return bool(torch is not None and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def _device(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """Return the index of the device that a call's first tensor is on."""
    return int(getattr(_first_device(args, kwargs), "index", None) or 0)


def _model(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """Return the model of the GPU that a call's first tensor is on."""
    device = _first_device(args, kwargs)
    return device_model(device.index or 0) if getattr(device, "type", None) == "cuda" else None


def _first_device(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    for value in (*args, *kwargs.values()):
        device = getattr(value, "device", None)
        if device is not None:
            return device
    return None


def _install(artifact: str) -> None:
    """Put a winner into Triton's cache, so that the call compiles nothing; without it, it compiles."""
    try:
        install(artifact)
    except (OSError, ValueError, KeyError) as error:
        _log.info("%s cannot be put into Triton's cache: %s", artifact, error)


def _allow_captures() -> None:
    """Let this thread load a kernel while another one captures a CUDA graph, which its loading would end otherwise."""
    # Without the driver's library there is nothing to capture, and nothing can be loaded.
    with contextlib.suppress(ImportError, RuntimeError):
        from cuda.bindings import driver

        driver.cuThreadExchangeStreamCaptureMode(driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)


def _getting_ready(tuner: Any, request: Request, text: str, device: int) -> threading.Thread:
    """Have Triton compile what a function's first launch needs: its driver's and its launcher's C code, for a second.

    All configs have the same, so that one is loaded for it, in the thread that is returned.
    """

    def get_ready() -> None:
        try:
            _prepare(tuner, request, text, None, device)
        except Exception as error:
            # The launch meets it again, if it is no fault of this config.
            _log.debug("%s is not prepared: %s", request.function, error)

    thread = threading.Thread(target=get_ready, name="ktuned-prepare", daemon=True)
    thread.start()
    return thread


def _prepare(tuner: Any, request: Request, text: str, artifact: str | None, device: int) -> None:
    """Load a winner before a call launches it: from its artifact by way of Triton's cache, else compiled here."""
    import torch

    from ktuned_triton.signature import call_arguments

    if artifact is not None:
        _install(artifact)
    _allow_captures()
    build = request.call.build(text, FUNCTION_NAME)
    function = jitted(tuner)
    arguments = call_arguments(function, build, Path())
    with torch.cuda.device(device):
        kernel = function.warmup(**arguments, grid=build.grid, **build.compiler_options)
        # Reading it loads the machine code.
        _ = kernel.run
