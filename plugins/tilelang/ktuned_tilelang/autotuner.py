"""The drop-ins for TileLang's autotuner: ``autotune`` and ``AutoTuner``, whose configs the daemon tunes."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from ktuned_tilelang.artifact import check_version
from ktuned_tilelang.call import PASS_CONFIGS, listed
from ktuned_tilelang.tuning import Choices, Found, Mode, Task, Upgrade, WithoutDaemon, tune


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
) -> Callable[[Any], Any]:
    """Tune a ``@tilelang.jit`` function as ``tilelang.autotune`` does, in ktuned's daemon.

    The first arguments are TileLang's; ``configs`` may be a dict of axes, too. With ``mode="wait"`` the first call of a
    key waits for its winner, as with TileLang; with ``"background"`` it gets the best kernel known, else the first
    config's, which is exchanged in place for the winner. ``upgrade`` says how often: ``"once"``, ``"never"``,
    ``"always"``. ``without_daemon`` leaves the function to ``"tilelang"``, or compiles the ``"first"`` config.
    Processes with the same ``pin`` see the same winners for good.

    Raises:
        ValueError: an option has no such value, or the function is given without options.
        ImportError: TileLang is not installed, or is another one than this plugin knows.
    """
    choices = Choices(mode, upgrade, without_daemon, pin)
    tuner: Any = tilelangs_tuner()
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

    def take(function: Any) -> Any:
        made = decorate(function)
        made.__class__ = function_class()
        made.choices = choices
        return made

    return take


def tilelangs_tuner() -> Any:
    """Return the module of TileLang's tuner.

    Raises:
        ImportError: TileLang is not installed, or is another one than this plugin knows.
    """
    check_version(importlib.import_module("tilelang").__version__)
    return importlib.import_module("tilelang.autotuner.tuner")


@cache
def function_class() -> type[Any]:
    """Return the class of autotuned functions: a subclass of TileLang's."""
    tuner: Any = tilelangs_tuner()

    class KtunedFunction(tuner.AutoTuneImpl):  # type: ignore[misc]
        """An autotuned function whose configs are tuned by ktuned's daemon."""

        choices = Choices()

        def get_tunner(self) -> Any:
            """Return TileLang's tuner of this function, with ktuned's in its place."""
            made = super().get_tunner()
            own = tuner_class().from_kernel(made.fn, made.configs)
            own.compile_args, own.profile_args = made.compile_args, made.profile_args
            own.choices, own.jit, own.inputs = self.choices, self.jit_impl, _captured_inputs()
            run = own.run

            def with_options() -> Any:
                return run(
                    self.warmup,
                    self.rep,
                    self.timeout,
                    early_stop=self.early_stop,
                    early_stop_factor=self.early_stop_factor,
                )

            own.run = with_options
            return own

    return KtunedFunction


@cache
def tuner_class() -> type[Any]:
    """Return ``AutoTuner``: a subclass of TileLang's."""
    tuner: Any = tilelangs_tuner()
    result: Any = importlib.import_module("tilelang.autotuner.param").AutotuneResult

    class AutoTuner(tuner.AutoTuner):  # type: ignore[misc]
        """TileLang's tuner of a function, whose configs are tuned by ktuned's daemon."""

        choices = Choices()
        configs: Any
        jit: Any = None
        inputs: Sequence[Any] | None = None

        def set_profile_args(self, *args: Any, **kwargs: Any) -> Any:
            """Keep TileLang's options of measuring, and the tensors of ``set_autotune_inputs``."""
            self.inputs = _captured_inputs()
            return super().set_profile_args(*args, **kwargs)

        def set_tuning_args(
            self,
            mode: Mode = "wait",
            upgrade: Upgrade = "once",
            without_daemon: WithoutDaemon = "tilelang",
            pin: str | None = None,
        ) -> Any:
            """Set ktuned's own options: see :func:`autotune`."""
            self.choices = Choices(mode, upgrade, without_daemon, pin)
            return self

        def run(
            self,
            warmup: int = 25,
            rep: int = 100,
            timeout: int = 180,
            use_pipeline: bool = False,
            enable_grouped_compile: bool = False,
            group_compile_size: int = 2,
            benchmark_devices: list[int] | None = None,
            benchmark_multi_gpu: bool = False,
            early_stop: bool = False,
            early_stop_factor: float = 2.0,
        ) -> Any:
            """Have the configs tuned and return TileLang's result.

            The daemon compiles while it measures, and on all devices that it has.

            Raises:
                ValueError: a config has a key that is no parameter of the function, or there are none.
                RuntimeError: no config compiles, runs and computes the right result.
            """
            if early_stop and early_stop_factor < 1.0:
                raise ValueError(f"early_stop_factor must be >= 1.0, got {early_stop_factor}")
            args, kwargs = self._kernel_parameters or ((), ())
            self.configs = listed(self.configs, args, dict(kwargs))
            _check_keys(self.fn, self.configs)
            if self._is_given(args, dict(kwargs)):
                return _result(result, Found(self._compiled({}), None))
            compile_function, elaborate = self._ensure_jit_functions()
            self.jit_compile, self.jit_elaborate = compile_function, elaborate
            found = tune(
                Task(
                    function=getattr(self.fn, "orig_func", self.fn),
                    configs=self.configs,
                    elaborate=elaborate,
                    compile=self._compiled,
                    compile_args=self.compile_args,
                    compile_flags=_flags(self.jit),
                    profile_args=self.profile_args,
                    inputs=self.inputs if self.inputs is not None else self._supplied(elaborate),
                    timeout_s=timeout,
                    early_stop=early_stop_factor if early_stop else 0.0,
                ),
                self.choices,
            )
            if found is not None:
                return _result(result, found)
            return super().run(
                warmup,
                rep,
                timeout,
                use_pipeline,
                enable_grouped_compile,
                group_compile_size,
                benchmark_devices,
                benchmark_multi_gpu,
                early_stop,
                early_stop_factor,
            )

        def _compiled(self, config: Mapping[str, Any]) -> Any:
            named = {name: value for name, value in config.items() if name != PASS_CONFIGS}
            own = {"__pass_configs__": config[PASS_CONFIGS]} if config.get(PASS_CONFIGS) else {}
            return self._ensure_jit_functions()[0](**named, **own)

        def _is_given(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
            """Return whether the call itself gives a knob: then nothing is tuned."""
            if self._kernel_parameters is None:
                return False
            names = list(self._function_parameters or ())
            knobs = [name for name in self.configs[0] if name != PASS_CONFIGS]
            return any(name in kwargs or names.index(name) < len(args) for name in knobs)

        def _supplied(self, elaborate: Callable[..., Any]) -> Sequence[Any] | None:
            """Return the tensors of ``supply_prog``, called for the first config's parameters."""
            supply = self.profile_args.supply_prog
            if supply is None:
                return None
            parameters: Any = importlib.import_module("tilelang.engine.param").KernelParam
            prim_func = elaborate(**{name: value for name, value in self.configs[0].items() if name != PASS_CONFIGS})
            buffers = dict(prim_func.buffer_map)
            outputs = self.compile_args.out_idx
            indices = [] if outputs is None else [outputs] if isinstance(outputs, int) else outputs
            count = len(prim_func.params)
            left_out = {index % count for index in indices}
            made = [
                parameters.from_buffer(buffers[value]) if value in buffers else parameters.from_var(value)
                for index, value in enumerate(prim_func.params)
                if index not in left_out
            ]
            return list(supply(made))

    return AutoTuner


def _captured_inputs() -> list[Any] | None:
    """Return the tensors of ``set_autotune_inputs``."""
    captured = importlib.import_module("tilelang.autotuner.capture").get_autotune_inputs()
    return None if captured is None else list(captured)


def _check_keys(function: Any, configs: Sequence[Mapping[str, Any]]) -> None:
    names = set(inspect.signature(getattr(function, "orig_func", function)).parameters)
    for config in configs:
        if unused := set(config) - names - {PASS_CONFIGS}:
            raise ValueError(f"Unused keys in config: {unused}")


def _flags(jit: Any) -> tuple[str, ...]:
    flags = getattr(jit, "compile_flags", None)
    return () if not flags else (flags,) if isinstance(flags, str) else tuple(flags)


def _result(kind: Any, found: Found) -> Any:
    return kind(
        latency=found.latency,
        config=None if found.config is None else dict(found.config),
        ref_latency=found.ref_latency,
        libcode=found.kernel.get_kernel_source(),
        func=found.kernel.prim_func,
        kernel=found.kernel,
    )
