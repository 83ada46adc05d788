"""One call of an autotuned function as plain data: the program of each config, and the tensors.

Only the application has the function, its closure and its arguments, so it makes the program of each config, once for
each key. A program is TVM's JSON, which workers compile without importing anything of the application. Results belong
to the program, not to the source, so no edit can be missed.

Inputs are drawn in the same way as by the supply type of TileLang that the call names. Tensors that the application
gives (``set_autotune_inputs``) are captured if they are not floating-point (:mod:`ktuned.dropin.recorded_call`).
"""

from __future__ import annotations

import gzip
import importlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ktuned.dropin import (
    CALLS,
    CAPTURED,
    PROGRAMS_KEY,
    NotTunable,
    RecordedCall,
    check_captured_size,
    convert_to_scalar,
    digest_content,
    restore_value,
    shorten_dtype,
)
from ktuned.model import Config, Problem, canonical
from ktuned_tilelang.build import Build

PASS_CONFIGS = "pass_configs"
"""The only key of a config that is not a parameter of the function."""

_FLOATS = frozenset({"float64", "float32", "float16", "bfloat16"})
_DRAWN_BY_AUTO = frozenset({"float32", "float16", "bfloat16"})


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor parameter; ``low`` and ``high`` bound a fill of integers."""

    dtype: str
    shape: tuple[int, ...]
    fill: str
    low: int | None = None
    high: int | None = None


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """TileLang's compile options, in the form that a Build takes."""

    out_idx: tuple[int, ...]
    target: str
    execution_backend: str
    compile_flags: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Call(RecordedCall):
    """A call; configs are keyed by the text of their knobs.

    Attributes:
        tensors: the tensor parameters by name.
        args: all parameters in order: names of tensors, and numbers.
        programs: the file name of each config's program.
        pass_configs: the pass configs of each config that has any.
        options: the compile options of all configs.
    """

    tensors: Mapping[str, Tensor]
    args: tuple[Any, ...]
    programs: Mapping[str, str]
    pass_configs: Mapping[str, Mapping[str, Any]]
    options: CompileOptions

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the tensors that a kernel writes: those in ``out_idx``, or all tensors if it is empty."""
        names = [self.args[index] for index in self.options.out_idx]
        return tuple(names or self.tensors)

    def make_build(self, config: str) -> Build:
        """Return a config's Build; its program lies among the files beside the kernel file."""
        return Build(
            program=f"{CALLS}/{self.programs[config]}",
            args=self.args,
            out_idx=self.options.out_idx or None,
            target=self.options.target,
            execution_backend=self.options.execution_backend,
            pass_configs=self.pass_configs.get(config, {}),
            compile_flags=self.options.compile_flags,
        )


@dataclass(frozen=True)
class EvaluatedCall:
    """A call, with the objects that its plain data stands for.

    Attributes:
        call: the plain data.
        programs: the programs by file name.
        configs: the application's configs, by the text of their knobs.
        captured: the application's tensors whose content travels.
        numbers: the parameters that are numbers, by name.
    """

    call: Call
    programs: Mapping[str, Any]
    configs: Mapping[str, Mapping[str, Any]]
    captured: Mapping[str, Any] = field(default_factory=dict)
    numbers: Mapping[str, bool | int | float] = field(default_factory=dict)

    @property
    def problem(self) -> Problem:
        """The tuning key: ``{"A": "f16[4096,4096]", …}`` for people, and a digest of all that decides the results."""
        shown = {
            name: f"{shorten_dtype(tensor.dtype)}[{','.join(map(str, tensor.shape))}]"
            for name, tensor in self.call.tensors.items()
        }
        return {**shown, **self.numbers, PROGRAMS_KEY: digest_content(self.call.to_json())}

    def find_program(self, config: str) -> Any:
        """Return a config's program."""
        return self.programs[self.call.programs[config]]

    def pack_files(self) -> tuple[Call, dict[str, bytes]]:
        """Return the call for its record, and the files that it names."""
        save: Any = importlib.import_module("tilelang").tvm.ir.save_json
        # Without a time stamp, so that equal programs are equal files.
        files = {name: gzip.compress(save(program).encode(), 1, mtime=0) for name, program in self.programs.items()}
        captured = {name: value.detach().to("cpu", copy=True) for name, value in self.captured.items()}
        call, content = self.call.pack_captured(captured)
        return call, {**files, **content}


def list_configs(configs: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the configs of a call as a list; ``configs`` is a list, a dict of axes, or a function of the arguments.

    Raises:
        ValueError: there are no configs.
    """
    declared = configs(*args, **kwargs) if callable(configs) else configs
    if isinstance(declared, Mapping):
        axes = {name: values if isinstance(values, list | tuple) else [values] for name, values in declared.items()}
        listed_configs = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    else:
        listed_configs = [dict(config) for config in declared]
    if not listed_configs:
        raise ValueError("No configurations to tune, please check your `@autotune` decorator")
    return listed_configs


def to_knobs(config: Mapping[str, Any], names: Iterable[str]) -> Config:
    """Return a config as a config of ktuned, with all ``names``; values that are not scalars become text."""
    return {name: convert_to_scalar(config[name]) if name in config else "~" for name in names}


def make_unlisted_config(knobs: Config, listed: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the application's form of a config that is not in its list; ``None`` if it cannot be made.

    A value that is no scalar is found by its text among the listed configs.
    """
    try:
        return {
            name: restore_value(value, (one[name] for one in listed if name in one))
            for name, value in knobs.items()
            if value != "~"
        }
    except LookupError:
        return None


def evaluate_call(
    configs: Sequence[Mapping[str, Any]],
    elaborate: Callable[..., Any],
    options: CompileOptions,
    base: Mapping[str, Any],
    supplied: Callable[[Any], Sequence[Any] | None],
    supply: str,
) -> EvaluatedCall:
    """Describe a call as plain data; configs that make no program are left out.

    Args:
        configs: the application's configs.
        elaborate: makes the program of a config.
        options: the compile options of all configs.
        base: the pass configs of all configs.
        supplied: returns the tensors that the application gives for a program; ``None`` if it gives none.
        supply: the name of TileLang's way to fill tensors that are not given.

    Raises:
        NotTunable: another process cannot make its tensors.
        Exception: what ``elaborate`` raised, if no config makes a program.
    """
    names = list(dict.fromkeys(name for config in configs for name in config))
    files, programs, chosen = {}, {}, {}
    pass_configs: dict[str, Mapping[str, Any]] = {}
    fault: Exception | None = None
    for config in configs:
        try:
            prim_func = elaborate(**{name: value for name, value in config.items() if name != PASS_CONFIGS})
        except Exception as error:
            fault = fault or error
            continue
        text = canonical(to_knobs(config, names))
        # The digest is not made of the JSON, which has line numbers: a new comment above the function must not matter.
        file = f"{digest_content(prim_func.script(show_meta=True))}.program.json.gz"
        files[text], programs[file], chosen[text] = file, prim_func, config
        if passed := {**base, **(config.get(PASS_CONFIGS) or {})}:
            pass_configs[text] = {str(getattr(key, "value", key)): value for key, value in passed.items()}
    if not files:
        raise fault or ValueError("No configurations to tune")
    first = programs[next(iter(files.values()))]
    outputs = _resolve_outputs(first, options.out_idx)
    tensors, args, captured, numbers = _read_parameters(first, outputs, supplied(first), supply)
    call = Call(
        tensors=tensors,
        args=tuple(args),
        programs=files,
        pass_configs=pass_configs,
        options=replace(options, out_idx=outputs),
    )
    try:
        call.to_json()
    except TypeError as error:
        raise NotTunable(f"its pass configs are not plain values: {error}") from error
    return EvaluatedCall(call, programs, chosen, captured, numbers)


def _resolve_outputs(prim_func: Any, out_idx: Sequence[int]) -> tuple[int, ...]:
    declared = dict(prim_func.attrs or {}).get("tilelang_out_idx")
    count = len(prim_func.params)
    return tuple(int(index) % count for index in (out_idx if declared is None else declared))


def _read_parameters(
    prim_func: Any, outputs: Sequence[int], inputs: Sequence[Any] | None, supply: str
) -> tuple[dict[str, Tensor], list[Any], dict[str, Any], dict[str, bool | int | float]]:
    """Return a program's parameters with the values that the call gives.

    Returns:
        the tensors, all parameters in order, the tensors whose content travels, and the numbers.
    """
    buffers = dict(prim_func.buffer_map)
    inputs_by_index = _match_inputs(len(prim_func.params), outputs, inputs)
    sizes = _find_symbolic_sizes(prim_func, inputs_by_index)
    tensors: dict[str, Tensor] = {}
    args: list[Any] = []
    captured: dict[str, Any] = {}
    numbers: dict[str, bool | int | float] = {}
    for index, parameter in enumerate(prim_func.params):
        buffer = buffers.get(parameter)
        value: Any = inputs_by_index.get(index)
        if buffer is None:
            if type(value) not in (bool, int, float):
                raise NotTunable(f"its parameter {parameter.name} is a number, and the call gives none")
            args.append(value)
            numbers[str(parameter.name)] = value
            continue
        name = str(buffer.name)
        shape = tuple(_resolve_size(extent, sizes, name) for extent in buffer.shape)
        dtype = _find_torch_dtype(buffer)
        if value is not None and not value.is_contiguous():
            raise NotTunable(f"its tensor {name} is not contiguous")
        if value is not None and index not in outputs and dtype not in _FLOATS:
            captured[name] = value
            tensors[name] = Tensor(dtype, shape, CAPTURED)
        elif index in outputs:
            tensors[name] = Tensor(dtype, shape, "empty")
        else:
            tensors[name] = _describe_supplied(dtype, shape, "Randn" if value is not None else supply)
        args.append(name)
    check_captured_size({name: tensor.numel() * tensor.element_size() for name, tensor in captured.items()})
    return tensors, args, captured, numbers


def _match_inputs(count: int, outputs: Sequence[int], inputs: Sequence[Any] | None) -> dict[int, Any]:
    if inputs is None:
        return {}
    wanted = range(count) if len(inputs) == count else [index for index in range(count) if index not in outputs]
    if len(wanted) != len(inputs):
        raise NotTunable(f"it is given {len(inputs)} inputs, and its kernel has {count} parameters")
    return dict(zip(wanted, inputs, strict=True))


def _find_symbolic_sizes(prim_func: Any, inputs_by_index: Mapping[int, Any]) -> dict[str, int]:
    """Return the values of symbolic sizes by name, read from the given tensors."""
    buffers = dict(prim_func.buffer_map)
    sizes: dict[str, int] = {}
    for index, parameter in enumerate(prim_func.params):
        value: Any = inputs_by_index.get(index)
        if parameter in buffers and hasattr(value, "shape"):
            for extent, size in zip(buffers[parameter].shape, value.shape, strict=True):
                if hasattr(extent, "name"):
                    sizes.setdefault(str(extent.name), int(size))
        elif value is not None:
            sizes[str(parameter.name)] = value
    return sizes


def _resolve_size(extent: Any, sizes: Mapping[str, int], name: str) -> int:
    if hasattr(extent, "name"):
        if str(extent.name) not in sizes:
            raise NotTunable(
                f"its tensor {name} has the symbolic size {extent.name}: give inputs by set_autotune_inputs"
            )
        return sizes[str(extent.name)]
    try:
        return int(extent)
    except TypeError as error:
        raise NotTunable(f"the size {extent} of its tensor {name} is an expression") from error


def _find_torch_dtype(buffer: Any) -> str:
    parameters: Any = importlib.import_module("tilelang.engine.param")
    try:
        return str(parameters.KernelParam.from_buffer(buffer).torch_dtype()).removeprefix("torch.")
    except Exception as error:
        raise NotTunable(f"its tensor {buffer.name} is of {buffer.dtype}, which torch does not have") from error


def _describe_supplied(dtype: str, shape: tuple[int, ...], supply: str) -> Tensor:
    """Describe a tensor that is filled in the same way as by TileLang's supply type of this name."""
    if supply in ("Zero", "One"):
        return Tensor(dtype, shape, "zeros" if supply == "Zero" else "ones")
    is_float = dtype in _FLOATS
    if supply in ("Uniform", "Normal", "Randn") and is_float:
        return Tensor(dtype, shape, "uniform" if supply == "Uniform" else "normal")
    if supply == "Auto" and dtype in _DRAWN_BY_AUTO:
        return Tensor(dtype, shape, "uniform")
    if dtype == "bool":
        return Tensor(dtype, shape, "integer")
    if dtype.startswith("uint"):
        return Tensor(dtype, shape, "integer", 0, 3)
    if dtype.startswith("float8"):
        return Tensor(dtype, shape, "integer", -128, 128)
    return Tensor(dtype, shape, "integer", -2, 3)
