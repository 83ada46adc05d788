"""One tuning key of a function: its call as data, and the config that calls launch.

A winner's machine code goes into Triton's disk cache, where Triton finds it instead of compiling.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from ktuned.dropin import (
    Answer,
    Event,
    KeyedCall,
    LaunchMachine,
    Policy,
    RecordedCall,
    Standing,
    account,
    find_device_model,
)
from ktuned.model import Problem, canonical
from ktuned_triton.application_lowering import LoweredCall, lower_in_background
from ktuned_triton.artifact import install
from ktuned_triton.build import Library
from ktuned_triton.call import (
    Call,
    EmptyGrid,
    copy_contents,
    evaluate_call,
    find_jit_function,
    make_unlisted_config,
    read_knobs,
)
from ktuned_triton.declaration import Declaration
from ktuned_triton.signature import match_arguments

BEING_LOWERED: Final = "the program has not translated all its configs yet; its next start goes on"


@dataclass(frozen=True)
class CallArguments:
    """One call: the configs that are left after pruning, and the arguments; ``grid`` is among the keywords."""

    configs: list[Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def device(self) -> Any:
        """The device of the first tensor; ``None`` without one."""
        for value in (*self.args, *self.kwargs.values()):
            device = getattr(getattr(value, "base", value), "device", None)
            if device is not None:
                return device
        return None

    @property
    def model(self) -> str | None:
        """The model of the GPU that the call uses; ``None`` if it uses none."""
        device = self.device
        return find_device_model(device.index or 0) if getattr(device, "type", None) == "cuda" else None


class TritonCall(KeyedCall):
    """One tuning key of an autotuned function.

    Attributes:
        is_once: whether the decision holds only for the current call.
        gets_through: whether the next call calls the library's own ``run``, which stores the winner.
    """

    framework = "Triton"

    def __init__(
        self,
        tuner: Any,
        function: str,
        problem: Problem,
        model: str | None,
        declaration: Declaration,
        configs: tuple[str, ...],
        policy: Policy,
        *,
        is_importable: bool,
    ) -> None:
        super().__init__(function, problem, model, declaration, configs, policy)
        self._is_importable = is_importable
        self._tuner: Any = weakref.ref(tuner)
        self._has_own_bench = getattr(tuner, "_do_bench", None) is not None and not declaration.is_timed_by_graph
        self._configs: dict[str, Any] = {}
        self._launched: tuple[Any, dict[str, Any]] = None, {}
        """The config that calls launch, and the arguments that it sets; one value, because threads exchange it."""
        self.is_once = False
        self.gets_through = False
        self._recorded_call: Call | None = None
        self._constants: Mapping[str, Mapping[str, Any]] = {}
        """The values of the recorded call's constexpr parameters, by config."""
        self._unlisted = ""
        """The config of a winners file that is not in the function's list; anything may be wrong with it."""
        self._current_call: CallArguments | None = None
        """The call that is being decided; cleared afterwards, so that the application's tensors are not kept alive."""

    @property
    def winner(self) -> Any:
        """The winner that calls launch, as the application's own config object; ``None`` if they launch no winner."""
        return self._configs[self.machine.config] if self.machine.standing is Standing.WINNER else None

    @property
    def winner_latency_ms(self) -> float:
        """The daemon's latency of a winner that gets through, in the unit of Triton's measurements."""
        return (self.machine.winner_latency_us or 0.0) / 1000.0

    def handle(self, event: Event) -> None:
        """Give the machine an event; a winner that it settles on gets through to the library's own store."""
        super().handle(event)
        is_fixed = self.machine.policy.is_exact or self.machine.policy.winners is not None
        self.gets_through = self.machine.winner_latency_us is not None and not is_fixed

    def decide(self, call: CallArguments) -> bool:
        """Decide which config a call launches; return ``False`` if Triton tunes the key."""
        if self.machine.standing is Standing.NEW:
            self._configs = {canonical(read_knobs(config)): config for config in call.configs}
            self._admit_fixed_config()
        self._current_call = call
        self.device = getattr(call.device, "index", None) or 0
        try:
            return self.decide_launch()
        except EmptyGrid:
            # An empty call says nothing about its key: launch the first config once; the next call decides.
            self.machine = LaunchMachine(self.machine.policy, self.machine.configs)
            self.launch_config(self.machine.configs[0], once=True)
            return True
        finally:
            self._current_call = None

    def launch(self, tuner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Launch the config that was decided on."""
        self.counter.launches += 1
        return launch_config(tuner, *self._launched, args, kwargs)

    def _admit_fixed_config(self) -> None:
        """Add the config of a winners file to the call's configs, even if it is not in the function's list."""
        fixed = self.machine.fixed
        if fixed is None or fixed.config is None or fixed.config in self._configs:
            return
        own_configs = self._tuner().__dict__["configs"]
        if fixed.config in {canonical(read_knobs(config)) for config in own_configs}:
            self.refuse_fixed_config("was pruned by the application")
        elif (config := make_unlisted_config(json.loads(fixed.config), own_configs)) is None:
            self.refuse_fixed_config("is no config of the function")
        else:
            self._configs[fixed.config] = config
            self._unlisted = fixed.config

    def pack_call(self) -> tuple[Call, Mapping[str, bytes]]:
        """Return the current call as data, with copies of the tensors whose content must travel.

        Raises:
            NotTunable: another process cannot repeat the call.
            EmptyGrid: the call launches nothing.
        """
        current = self._current_call
        assert current is not None
        call, captured, self._constants = evaluate_call(
            self._tuner(), current.configs, current.args, current.kwargs, is_importable=self._is_importable
        )
        self._recorded_call, files = call.pack_captured(copy_contents(captured, call.tensors) if captured else {})
        if self._has_own_bench:
            account.record_note(f"{self._function} has its own do_bench; ktuned times it in ktuned's way")
        return self._recorded_call, files

    def leave_call(self, call: RecordedCall, files: Mapping[str, bytes]) -> None:
        """Leave the call in the spool; if no import finds the function, lower it first, in the background.

        Raises:
            OSError: it cannot be left.
        """
        if self._is_importable:
            super().leave_call(call, files)
            return
        assert isinstance(call, Call)
        leave = super().leave_call
        lowered = LoweredCall(
            self._key.text,
            find_jit_function(self._tuner()),
            call,
            self._constants,
            self.device,
            lambda finished, texts: leave(finished, {**files, **texts}),
            lambda: self.machine.standing is not Standing.WINNER,
        )
        if self.machine.policy.mode == "wait":
            lowered.lower_all(lambda _: True)
        else:
            account.record_key(self._name, BEING_LOWERED)
            lower_in_background(lowered)

    def load_config(self, config: str, answer: Answer | None) -> bool:
        """Load a config before its first launch: put its artifact into Triton's cache, or compile the config here.

        Returns:
            whether the device can launch it.
        """
        if answer is not None and answer.artifact is not None:
            try:
                install(answer.artifact)
            except (OSError, ValueError, KeyError) as error:
                # Triton then compiles the config itself.
                self._log.info("%s cannot be put into Triton's cache: %s", answer.artifact, error)
        skipped = (Exception,) if config == self._unlisted else _list_unfit_errors()
        try:
            kernel = self._compile_config(config)
            # Loads the machine code; raises if the device lacks a resource that it needs.
            getattr(kernel, "_init_handles", lambda: None)()
        except skipped as error:
            self._log.info("%s cannot launch %s: %s", self._function, config, str(error).partition("\n")[0])
            return False
        return True

    def _compile_config(self, config: str) -> Any:
        tuner, current = self._tuner(), self._current_call
        if current is not None:
            chosen = self._configs[config]
            arguments = {**current.kwargs, **chosen.all_kwargs()}
            if chosen.pre_hook is not None:
                # The hook may reshape a descriptor, and the descriptor's block shape is compiled in.
                chosen.pre_hook({**dict(zip(tuner.arg_names, current.args, strict=False)), **arguments})
            return tuner.fn.run(*current.args, **{**arguments, "warmup": True})
        if self._recorded_call is None:
            return None
        return compile_recorded_call(find_jit_function(tuner), self._recorded_call, config, self._constants[config])

    def launch_config(self, config: str, *, once: bool) -> None:
        """Make calls launch a config; with ``once`` only the current call."""
        chosen = self._configs[config]
        self._launched, self.is_once = (chosen, chosen.all_kwargs()), once


def launch_config(
    tuner: Any, config: Any, arguments: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Launch a config as Triton's ``Autotuner.run`` does; ``arguments`` are those that the config sets."""
    tuner.best_config = config
    if config.pre_hook is not None:
        config.pre_hook({**dict(zip(tuner.arg_names, args, strict=False)), **kwargs, **arguments})
    return tuner.fn.run(*args, **kwargs, **arguments)


def compile_recorded_call(function: Any, call: Call, config: str, constants: Mapping[str, Any]) -> Any:
    """Compile a config for a recorded call, for torch's current device, while the application runs."""
    build = call.make_build(config, "function", library=Library())
    arguments = match_arguments(function, constants, build)
    return function.run(**arguments, grid=build.grid, warmup=True, **build.compiler_options)


@cache
def _list_unfit_errors() -> tuple[type[Exception], ...]:
    """Return the types of errors for which Triton's own tuning skips a config."""
    from triton.compiler import errors as compiling
    from triton.runtime import errors as running

    places: Sequence[tuple[Any, str]] = (
        (running, "OutOfResources"),
        (compiling, "CompileTimeAssertionFailure"),
        (running, "PTXASError"),
    )
    return tuple(getattr(module, name) for module, name in places if hasattr(module, name))
