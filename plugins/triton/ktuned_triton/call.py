"""One call of an autotuned function as plain data: its tuning key, its arguments, and a recipe for each config.

Pruning, heuristics and grids are functions of the application and need the call's arguments, so only the application
can evaluate them. It does so once for each key, in the call; tuning then needs nothing but the results. Tensors and
numbers that all configs share are stored once in the call; a recipe holds only what differs for its config.

A tensor travels as dtype, size and layout: its address modulo 256, and its place in memory that it shares with others.
Tensors of integers are captured (:mod:`ktuned.dropin.recorded_call`), unless a hook zeroes them. The tuning key has
only what Triton specialises by: whether the address is a multiple of 16. A call that a worker cannot repeat is left to
Triton (:class:`~ktuned.dropin.NotTunable`), such as a call with a table of pointers, which mean nothing in another
process.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ktuned.dropin import (
    CALLS,
    CAPTURED,
    CONSTANTS_KEY,
    TYPES_KEY,
    NotTunable,
    RecordedCall,
    check_captured_size,
    convert_to_scalar,
    digest_content,
    restore_value,
    shorten_dtype,
)
from ktuned.model import Config, Problem, canonical
from ktuned_triton.build import Argument, Build, is_named_tuple, pack_constant
from ktuned_triton.descriptors import Descriptor
from ktuned_triton.hook_effects import observe_config_hook, observe_tuner_hooks
from ktuned_triton.signature import ALIGNMENT_BYTES

FLOATING = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
"""Dtypes whose content is drawn at random; tensors of all other dtypes are captured."""

ADDRESS_BYTES = 8
SMALLEST_ADDRESS, LARGEST_ADDRESS = 1 << 40, 1 << 57
"""Range of the driver's addresses on 64-bit systems. An index is hardly ever that large, so a number in this range is
taken for an address."""

_UNALIGNED = "~"
"""Mark after the dtype of a tensor whose address is not a multiple of 16."""

_ADDRESS_PERIOD = 256
"""A GPU treats addresses alike that have the same remainder, in bytes."""

_LAUNCH_ONLY = ("grid", "warmup")
_SIZES = ("num_warps", "num_ctas", "num_stages", "maxnreg")


class EmptyGrid(Exception):
    """A call launches no program (its batch is empty, for example), so nothing can be tuned for it."""


@dataclass(frozen=True)
class Tensor:
    """A tensor argument: a row of elements, from its first element to the end of its storage.

    Strides and shapes are arguments of their own, so a row serves tensors of any shape.

    Attributes:
        dtype: the dtype's name.
        elements: the number of elements.
        fill: what it is filled with.
        remainder: the distance of the first element from the last multiple of 256 bytes.
        memory: the name of the tensor in whose memory it lies; its own name if others lie in its memory.
        offset: the distance of its first element from that tensor's, in bytes.
    """

    dtype: str
    elements: int
    fill: str
    remainder: int = 0
    memory: str = ""
    offset: int = 0


@dataclass(frozen=True)
class Recipe:
    """One config of a call: its constexprs, its grid and its compiler options.

    Attributes:
        constants: the constexpr parameters, by name.
        grid: programs in x, y, z.
        sizes: the options that Triton has for every kernel: ``num_warps`` and the like.
        options: all other compiler options.
        args: this config's arguments, if a heuristic or a hook makes them differ from the call's.
        lowered: the file with the text that the application itself has made; the constants are then compiled in.
    """

    constants: Mapping[str, Any]
    grid: tuple[int, ...]
    sizes: Mapping[str, int]
    options: Mapping[str, Any]
    args: tuple[Any, ...] | None = None
    lowered: str = ""


class EvaluatedCall(NamedTuple):
    """A call as data, and what belongs to it of the application's own objects.

    Attributes:
        call: the call.
        captured: the tensors whose content must travel, by name.
        constants: the values of the constexpr parameters, by the text of each config's knobs.
    """

    call: Call
    captured: dict[str, Any]
    constants: dict[str, dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Call(RecordedCall):
    """A call of an autotuned function.

    Attributes:
        tensors: its tensors by the names of their parameters.
        args: the arguments that all configs share.
        recipes: a recipe for each config, by the text of its knobs.
    """

    tensors: Mapping[str, Tensor]
    args: tuple[Any, ...]
    recipes: Mapping[str, Recipe]

    def make_build(self, config: str, function: str, **more: Any) -> Build:
        """Return a config's Build; ``function`` is the function's name, ``more`` are further fields of the Build."""
        recipe = self.recipes[config]
        sizes: Mapping[str, Any] = recipe.sizes
        return Build(
            function=function,
            args=self.args if recipe.args is None else recipe.args,
            constants=recipe.constants,
            grid=recipe.grid,
            options=recipe.options,
            dtypes={name: tensor.dtype for name, tensor in self.tensors.items()},
            unaligned=tuple(name for name, tensor in self.tensors.items() if tensor.remainder % ALIGNMENT_BYTES),
            lowered=recipe.lowered and f"{CALLS}/{recipe.lowered}",
            **sizes,
            **more,
        )


def read_knobs(config: Any) -> dict[str, bool | int | float | str]:
    """Return a ``triton.Config`` as a config of ktuned; values that are not scalars become text."""
    values = {**config.kwargs, **{name: getattr(config, name) for name in _SIZES}}
    return {
        name: convert_to_scalar(value) for name, value in values.items() if value is not None or name in config.kwargs
    }


def make_unlisted_config(knobs: Config, listed: Sequence[Any]) -> Any:
    """Return a ``triton.Config`` for knobs that no config of a function's list has; ``None`` if it cannot be made.

    It needs a listed config with the same names, whose hook it gets. A value that is no scalar is found by its text
    among the listed configs.
    """
    names = [name for name in knobs if name not in _SIZES]
    alike = [config for config in listed if set(config.kwargs) == set(names)]
    try:
        chosen = {name: restore_value(knobs[name], (config.kwargs[name] for config in alike)) for name in names}
    except LookupError:
        return None
    if not alike or len({config.pre_hook for config in alike}) > 1:
        return None
    sizes = {name: knobs[name] for name in _SIZES if name in knobs}
    return type(alike[0])(chosen, pre_hook=alike[0].pre_hook, **sizes)


def make_problem(tuner: Any, configs: Sequence[Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Problem:
    """Return a call's tuning key as a problem.

    It has the values of ``key``, the dtypes of all tensors, and a digest of what the application itself has computed:
    the configs that are left after pruning, with all constants and options that each is compiled with. A key argument
    that the call leaves out gets ``~``; Triton's own key leaves it out.

    Raises:
        NotTunable: a second autotuner wraps the function.
        Exception: whatever a heuristic raises.
    """
    arguments = map_arguments(tuner, args, kwargs)
    problem = {name: convert_to_scalar(arguments[name]) if name in arguments else "~" for name in tuner.keys}
    dtypes = [(value, getattr(value, "dtype", None) or _read_descriptor_dtype(value)) for value in arguments.values()]
    types = ",".join(
        shorten_dtype(dtype) + (_UNALIGNED if _is_tensor(value) and value.data_ptr() % ALIGNMENT_BYTES else "")
        for value, dtype in dtypes
        if dtype is not None
    )
    return {**problem, TYPES_KEY: types, CONSTANTS_KEY: _digest_constants(tuner, configs, args, kwargs)}


def _digest_constants(tuner: Any, configs: Sequence[Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    positional = dict(zip(tuner.arg_names, args, strict=False))
    heuristics, function = list_heuristics(tuner.fn), find_jit_function(tuner.fn)
    # Arguments of a launch are no part of the key, unless a config or a heuristic sets them.
    given = {parameter.name for parameter in function.params if not parameter.is_constexpr} | {*_LAUNCH_ONLY}
    texts = []
    for config in configs:
        chosen = config.all_kwargs()
        named = _resolve_named(positional, kwargs, chosen, heuristics)
        decided = {*chosen, *(name for name, _ in heuristics)}
        constants = {
            # A function that is passed as a constant has Triton's digest, too.
            name: getattr(value, "cache_key", None) or convert_to_scalar(value)
            for name, value in {**positional, **named}.items()
            if name in decided or name not in given
        }
        texts.append(canonical(constants))
    return digest_content("\n".join(texts))


def _resolve_named(
    positional: Mapping[str, Any],
    kwargs: Mapping[str, Any],
    chosen: Mapping[str, Any],
    heuristics: Iterable[tuple[str, Any]],
) -> dict[str, Any]:
    """Return a launch's keyword arguments as Triton resolves them: the call's, the config's, then the heuristics'."""
    named = {**kwargs, **chosen}
    for name, heuristic in heuristics:
        named[name] = heuristic({**positional, **named})
    return named


def _read_descriptor_dtype(value: Any) -> Any:
    return value.base.dtype if is_descriptor(value) else None


def is_descriptor(value: Any) -> bool:
    """Return whether a value is one of Triton's host-side tensor descriptors."""
    return type(value).__name__ == "TensorDescriptor" and hasattr(value, "block_shape")


def list_tensor_names(tuner: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of a call's tensors; of tensors with equal address and dtype, only the first name."""
    places: dict[tuple[int, str], str] = {}
    for name, value in _walk_tensors(map_arguments(tuner, args, kwargs)):
        places.setdefault((value.data_ptr(), str(value.dtype)), name)
    return tuple(places.values())


def _walk_tensors(given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in given.items():
        if isinstance(value, tuple) and not is_named_tuple(value):
            yield from _walk_tensors({f"{name}.{place}": item for place, item in enumerate(value)})
        elif is_descriptor(value):
            yield name, value.base
        elif _is_tensor(value):
            yield name, value


def map_arguments(tuner: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call's arguments by name, without keywords (``grid``, ``warmup``) that are no parameters."""
    arguments = {**dict(zip(tuner.arg_names, args, strict=False)), **kwargs}
    return {name: value for name, value in arguments.items() if name in tuner.arg_names}


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "untyped_storage") and hasattr(value, "data_ptr")


def evaluate_call(
    tuner: Any, configs: Sequence[Any], args: Sequence[Any], kwargs: Mapping[str, Any], *, is_importable: bool = True
) -> EvaluatedCall:
    """Describe a call as plain data.

    Hooks are called here, as Triton would call them, to find out which tensors they change.

    Args:
        tuner: Triton's autotuner.
        configs: the configs that are left after pruning.
        args: the call's positional arguments.
        kwargs: its keyword arguments, ``grid`` included.
        is_importable: whether another process can import the function; otherwise the application itself lowers it,
            and a constant that cannot travel becomes a text.

    Raises:
        NotTunable: another process cannot make the call; the message says why.
        EmptyGrid: the call launches nothing.
    """
    reader = ArgumentReader(tuner.reset_to_zero)
    positional = dict(zip(tuner.arg_names, args, strict=False))
    # What the author's hooks do to the tensors, once for all configs.
    reader.zeroed |= observe_tuner_hooks(tuner, {**positional, **kwargs, **configs[0].all_kwargs()})
    heuristics, function = list_heuristics(tuner.fn), find_jit_function(tuner.fn)
    names = {parameter.name for parameter in function.params}
    plain_names = [parameter.name for parameter in function.params if not parameter.is_constexpr]
    constexpr_names = [parameter.name for parameter in function.params if parameter.is_constexpr]
    given = {parameter.name: parameter.default for parameter in function.params} | positional | dict(kwargs)
    missing = [parameter.name for parameter in function.params if given[parameter.name] is inspect.Parameter.empty]
    shared: tuple[Argument, ...] | None = None
    recipes: dict[str, Recipe] = {}
    constants: dict[str, dict[str, Any]] = {}
    for config in configs:
        if conflicts := sorted(kwargs.keys() & config.kwargs.keys()):
            raise ValueError(f"Conflicting meta-parameters: {', '.join(conflicts)}. Do not pass what is tuned.")
        chosen = config.all_kwargs()
        # The config's own hook comes before the arguments are read, because it may reshape descriptors.
        if config.pre_hook is not None:
            reader.zeroed |= observe_config_hook(config.pre_hook, {**positional, **kwargs, **chosen})
        named = _resolve_named(positional, kwargs, chosen, heuristics)
        if absent := [name for name in missing if name not in named]:
            raise TypeError(f"{function.__name__}() is missing the argument {absent[0]!r}")
        values = {**given, **named}
        text = canonical(read_knobs(config))
        constants[text] = {name: values[name] for name in constexpr_names}
        pack = _pack_constant if is_importable else _pack_known_constant
        packed = {name: pack(name, value) for name, value in constants[text].items()}
        # The arguments are stored once, unless a hook or heuristic gives this config others.
        own: tuple[Argument, ...] | None = None
        if shared is None or config.pre_hook is not None or any(name in named for name in plain_names):
            own = tuple(reader.read_argument(name, values[name]) for name in plain_names)
            if shared is None or own == shared:
                shared, own = own, None
        # A name that is not a parameter of the function is an option of the compiler.
        options = {name: value for name, value in named.items() if name not in names and name not in _LAUNCH_ONLY}
        sizes = {name: options.pop(name) for name in _SIZES if name in options}
        plain_options = {name: _pack_constant(name, value) for name, value in options.items()}
        grid = _evaluate_grid(kwargs, {name: values[name] for name in names} | chosen)
        recipes[text] = Recipe(packed, grid, sizes, plain_options, own)
    assert shared is not None
    call = Call(tensors=reader.describe_tensors(), args=shared, recipes=recipes)
    return EvaluatedCall(call, reader.captured, constants)


def copy_contents(captured: Mapping[str, Any], elements: Mapping[str, Tensor]) -> dict[str, Any]:
    """Copy captured tensors to the CPU, each flattened to one row from its first element to the end of its storage.

    Raises:
        NotTunable: one holds addresses, or together they exceed ``MAX_CAPTURED_BYTES``.
    """
    import torch

    check_captured_size({name: elements[name].elements * value.element_size() for name, value in captured.items()})
    copies = {}
    for name, value in captured.items():
        row = torch.as_strided(value, (elements[name].elements,), (1,), value.storage_offset()).cpu()
        if row.dtype.itemsize == ADDRESS_BYTES and _holds_address(row):
            raise NotTunable(f"its argument {name} is a table of pointers")
        copies[name] = row
    return copies


def _holds_address(row: Any) -> bool:
    import torch

    # An unsigned number above 2**63 becomes negative here, and is not taken for an address, which is right.
    numbers = row.view(torch.int64)
    return bool(((numbers >= SMALLEST_ADDRESS) & (numbers < LARGEST_ADDRESS)).any())


def find_jit_function(function: Any) -> Any:
    """Return the ``@triton.jit`` function that an autotuner and heuristics wrap.

    Raises:
        NotTunable: something else wraps it.
    """
    inner = function
    while not hasattr(inner, "params"):
        if not is_wrapper(inner):
            raise NotTunable(f"its function is a {type(inner).__name__}, not a @triton.jit function")
        inner = inner.fn
    return inner


def list_heuristics(function: Any) -> list[tuple[str, Any]]:
    """Return the heuristics that wrap a function, in the order of their evaluation.

    Raises:
        NotTunable: a second autotuner wraps it.
    """
    heuristics: list[tuple[str, Any]] = []
    while is_wrapper(function):
        if is_wrapper(function, "Autotuner"):
            raise NotTunable("its function is itself autotuned")
        heuristics += function.values.items()
        function = function.fn
    return heuristics


def is_wrapper(function: Any, kind: str = "") -> bool:
    """Return whether this is an instance of Triton's ``Autotuner`` or ``Heuristics``; with ``kind``, of that class.

    Classes are compared by name, so that Triton need not be imported.
    """
    kinds = (kind,) if kind else ("Autotuner", "Heuristics")
    return any(base.__name__ in kinds for base in type(function).__mro__)


class ArgumentReader:
    """Turns arguments into plain data, and collects the tensors among them.

    Args:
        zeroed: names of the tensors that are zeroed before each launch.
    """

    def __init__(self, zeroed: Iterable[str]) -> None:
        self.zeroed: set[int] = set()
        self.captured: dict[str, Any] = {}
        self._reset_names = frozenset(zeroed)
        self._tensors: dict[str, tuple[Any, Tensor]] = {}
        self._names_by_memory: dict[tuple[int, str], str] = {}

    def describe_tensors(self) -> dict[str, Tensor]:
        """Return all tensors that were read; those that a hook zeroes get the fill ``zeros``."""
        storages: dict[int, list[str]] = {}
        for name, (value, tensor) in self._tensors.items():
            storages.setdefault(value.untyped_storage().data_ptr() if tensor.elements else id(value), []).append(name)
        described = {}
        for names in storages.values():
            # In the order of addresses: a tensor's content replaces that of the tensor in whose memory it lies.
            addresses = {name: int(self._tensors[name][0].data_ptr()) for name in names}
            owner, *others = sorted(names, key=addresses.__getitem__)
            for name in (owner, *others):
                value, tensor = self._tensors[name]
                if id(value) in self.zeroed:
                    self.captured.pop(name, None)
                    tensor = replace(tensor, fill="zeros")
                if others:
                    tensor = replace(tensor, memory=owner, offset=addresses[name] - addresses[owner])
                described[name] = tensor
        return described

    def read_argument(self, name: str, value: Any) -> Argument:
        """Return an argument in the form that a Build takes.

        Raises:
            NotTunable: another process cannot make such a value.
        """
        if isinstance(value, tuple) and not is_named_tuple(value):
            return tuple(self.read_argument(f"{name}.{place}", item) for place, item in enumerate(value))
        if value is None or type(value) in (bool, int, float):
            return value  # type: ignore[no-any-return]
        if is_descriptor(value):
            return Descriptor.read(value, self._read_tensor(name, value.base))
        if _is_tensor(value):
            return self._read_tensor(name, value)
        kind = f"named tuple {type(value).__name__}" if is_named_tuple(value) else type(value).__name__
        raise NotTunable(f"its argument {name} is a {kind}")

    def _read_tensor(self, name: str, value: Any) -> str:
        dtype = str(value.dtype).removeprefix("torch.")
        address: int = value.data_ptr()
        if (address, dtype) in self._names_by_memory:
            # The same memory under two names: the kernel works in place.
            return self._names_by_memory[address, dtype]
        if dtype.startswith("complex"):
            raise NotTunable(f"its argument {name} is a tensor of {dtype}, which Triton does not have")
        fill = "zeros" if name in self._reset_names else "uniform" if dtype in FLOATING else CAPTURED
        if fill == CAPTURED:
            self.captured[name] = value
        after = value.untyped_storage().nbytes() // value.element_size() - value.storage_offset()
        elements = after if value.numel() else 0
        # Allocations start at a multiple of 256, or at one of 16 on a CPU; that difference is not the call's.
        storage: int = value.untyped_storage().data_ptr()
        remainder = (address - storage + storage % ALIGNMENT_BYTES) % _ADDRESS_PERIOD if elements else 0
        self._tensors[name] = value, Tensor(dtype, elements, fill, remainder)
        self._names_by_memory[address, dtype] = name
        return name


def _evaluate_grid(kwargs: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[int, ...]:
    grid = kwargs["grid"]
    sizes = grid(dict(values)) if callable(grid) else grid
    blocks = tuple(int(size) for size in (sizes if isinstance(sizes, tuple | list) else (sizes,)))
    if not 1 <= len(blocks) <= 3:
        raise NotTunable(f"its grid has {len(blocks)} dimensions")
    if min(blocks) < 1:
        raise EmptyGrid(f"its grid is {blocks}")
    return blocks


def _pack_constant(name: str, value: Any) -> Any:
    try:
        return pack_constant(name, value)
    except (TypeError, ValueError) as error:
        raise NotTunable(str(error)) from error


def _pack_known_constant(name: str, value: Any) -> Any:
    """Return a constant as data, or as a text that is the same in each process."""
    try:
        return pack_constant(name, value)
    except (TypeError, ValueError) as error:
        text = str(getattr(value, "cache_key", None) or repr(value))
        if " at 0x" in text:
            raise NotTunable(f"another start of the program cannot recognise it: {error}") from error
        return text
