"""One call of an autotuned function, evaluated where it is made: its tuning key, and each config as plain data.

Only the application can prune configs, compute heuristics and evaluate grids: their functions need its arguments. A
record of the results is all that the tuning needs. What all configs share (tensors, numbers) stands in the call once;
a config's recipe has what it changes.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from ktuned.dropin import TYPES_KEY, short_dtype
from ktuned.model import canonical
from ktuned_triton.build import Argument, Build, Descriptor, constant, is_named
from ktuned_triton.hook_effects import HookEffects, UnknownEffects, observe_config_hook, observe_tuner_hooks
from ktuned_triton.signature import ALIGNMENT_BYTES

FLOATING = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
"""Dtypes whose content is drawn at random; others may be indices, for which random content is not safe."""

CAPTURED = "captured"
"""Fill of a tensor whose content is the call's own."""

MAX_CAPTURED_BYTES = 64 << 20
"""The content of one call's tensors of integers (indices, masks, lengths), which is copied from the device in the call:
10 ms of a step at most, once for a key, beside a compile that takes longer."""

ADDRESS_BYTES = 8
SMALLEST_ADDRESS, LARGEST_ADDRESS = 1 << 40, 1 << 57
"""Range of what a driver gives out as addresses on 64-bit systems; hardly an index is as large."""

_LAUNCH_ONLY = ("grid", "warmup")
_SIZES = ("num_warps", "num_ctas", "num_stages", "maxnreg")


class LeftAlone(Exception):
    """A call, or a whole function, that ktuned does not tune; the message is the reason."""


class NothingToLaunch(Exception):
    """A call whose grid is empty, as for a batch without elements: it says nothing of its key."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor argument: its dtype, its elements from the first to the end of its storage, its shape and strides."""

    dtype: str
    elements: int
    fill: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Recipe:
    """One config of a call: its constexprs, its grid and its compiler options.

    ``args`` are the arguments where a heuristic or a hook gives this config others than the call has. ``position`` is
    the config's place in the autotuner's list, where its hooks are found; ``None`` where none is to be called.
    """

    constants: Mapping[str, Any]
    grid: tuple[int, ...]
    sizes: Mapping[str, int]
    options: Mapping[str, Any]
    args: tuple[Argument, ...] | None = None
    position: int | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A call: its tensors by their parameters' names, its arguments, and the recipe of each config by its knobs' text.

    ``content`` names the file that holds the tensors whose content is the call's own.
    """

    tensors: Mapping[str, Tensor]
    args: tuple[Argument, ...]
    recipes: Mapping[str, Recipe]
    content: str = ""

    def build(self, config: str, function: str, **more: Any) -> Build:
        """Return the Build of a config, given as text, for a function; ``more`` are further fields."""
        recipe = self.recipes[config]
        sizes: Mapping[str, Any] = recipe.sizes
        return Build(
            function=function,
            args=self.args if recipe.args is None else recipe.args,
            constants=recipe.constants,
            grid=recipe.grid,
            options=recipe.options,
            dtypes={name: tensor.dtype for name, tensor in self.tensors.items()},
            **sizes,
            **more,
        )

    def to_json(self) -> str:
        """Return the text of a record."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read :meth:`to_json`'s text."""
        fields = json.loads(text)
        return cls(
            {
                name: Tensor(**{**tensor, "shape": tuple(tensor["shape"]), "strides": tuple(tensor["strides"])})
                for name, tensor in fields["tensors"].items()
            },
            tuple(fields["args"]),
            {
                config: Recipe(
                    **{
                        **recipe,
                        "grid": tuple(recipe["grid"]),
                        "args": None if recipe["args"] is None else tuple(recipe["args"]),
                    }
                )
                for config, recipe in fields["recipes"].items()
            },
            fields["content"],
        )


def knobs(config: Any) -> dict[str, bool | int | float | str]:
    """Return a ``triton.Config`` as ktuned's config; values that are no scalars become text."""
    values = {**config.kwargs, **{name: getattr(config, name) for name in _SIZES}}
    return {name: scalar(value) for name, value in values.items() if value is not None or name in config.kwargs}


def scalar(value: Any) -> bool | int | float | str:
    """Return a value as it stands in a problem or a config: numbers and strings as they are, others as their text."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"~{value}"
    if type(value) in (bool, int, float):
        return value  # type: ignore[no-any-return]
    if type(value) is str and not value.startswith("~"):
        return value
    return f"~{value!r}"


def key_of(tuner: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    """Return the problem that a call's tuning key is: the values of ``key``, and the dtypes of all tensors.

    The key's own arguments that a call leaves out have no value; Triton leaves them out, too.
    """
    given = _given(tuner, args, kwargs)
    problem = {name: scalar(given[name]) if name in given else "~" for name in tuner.keys}
    dtypes = (getattr(value, "dtype", None) or _descriptor_dtype(value) for value in given.values())
    return {**problem, TYPES_KEY: ",".join(short_dtype(dtype) for dtype in dtypes if dtype is not None)}


def _descriptor_dtype(value: Any) -> Any:
    return value.base.dtype if is_descriptor(value) else None


def is_descriptor(value: Any) -> bool:
    """Return whether a value is a host-side tensor descriptor of Triton's."""
    return type(value).__name__ == "TensorDescriptor" and hasattr(value, "block_shape")


def tensor_names(tuner: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names by which a call's tensors are known: each memory once, under its first parameter's name."""
    places: dict[tuple[int, str], str] = {}
    for name, value in _tensors_in(_given(tuner, args, kwargs)):
        places.setdefault((value.data_ptr(), str(value.dtype)), name)
    return tuple(places.values())


def _tensors_in(given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in given.items():
        if isinstance(value, tuple) and not is_named(value):
            yield from _tensors_in({f"{name}.{place}": item for place, item in enumerate(value)})
        elif is_descriptor(value):
            yield name, value.base
        elif _is_tensor(value):
            yield name, value


def _given(tuner: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    given = {**dict(zip(tuner.arg_names, args, strict=False)), **kwargs}
    return {name: value for name, value in given.items() if name in tuner.arg_names}


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "untyped_storage") and hasattr(value, "data_ptr")


def evaluate(
    tuner: Any,
    configs: Sequence[Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    captured: dict[str, Any] | None = None,
) -> tuple[Call, bool]:
    """Return a call with all its configs, as they are after pruning, and whether user code must run around a launch.

    The tensors whose content is the call's own are put into ``captured``, by their names.

    Raises:
        LeftAlone: it cannot be tuned by another process; says why.
        NothingToLaunch: its grid is empty.
    """
    reader = _ArgumentReader(tuner, {} if captured is None else captured)
    positional = dict(zip(tuner.arg_names, args, strict=False))
    needs_hooks = False
    try:
        effects = observe_tuner_hooks(tuner, {**positional, **kwargs, **configs[0].all_kwargs()})
    except UnknownEffects:
        effects, needs_hooks = HookEffects(), True
    reader.zeroed |= effects.zeroed
    heuristics, function = _layers(tuner.fn)
    plain = [parameter for parameter in function.params if not parameter.is_constexpr]
    constexprs = [parameter for parameter in function.params if parameter.is_constexpr]
    given = {parameter.name: parameter.default for parameter in function.params} | positional | dict(kwargs)
    missing = [one.name for one in function.params if given[one.name] is inspect.Parameter.empty]
    shared: tuple[Argument, ...] | None = None
    recipes: dict[str, Recipe] = {}
    for config in configs:
        if conflicts := sorted(kwargs.keys() & config.kwargs.keys()):
            raise ValueError(f"Conflicting meta-parameters: {', '.join(conflicts)}. Do not pass what is tuned.")
        chosen = config.all_kwargs()
        position = None
        if config.pre_hook is not None:
            try:
                reader.zeroed |= observe_config_hook(config.pre_hook, {**positional, **kwargs, **chosen}).zeroed
            except UnknownEffects:
                needs_hooks = True
        if needs_hooks:
            position = hook_position(tuner, config)
        named = {**kwargs, **chosen}
        for name, heuristic in heuristics:
            named[name] = heuristic({**positional, **named})
        if absent := [name for name in missing if name not in named]:
            raise TypeError(f"{function.__name__}() is missing the argument {absent[0]!r}")
        values = {**given, **named}
        constants = {one.name: _constant(one.name, values[one.name]) for one in constexprs}
        own: tuple[Argument, ...] | None = None
        if shared is None or config.pre_hook is not None or any(one.name in named for one in plain):
            own = tuple(reader.read(one.name, values[one.name]) for one in plain)
            if shared is None or own == shared:
                shared, own = own, None
        names = {one.name for one in function.params}
        options = {name: value for name, value in named.items() if name not in names and name not in _LAUNCH_ONLY}
        sizes = {name: options.pop(name) for name in _SIZES if name in options}
        plain_options = {name: _constant(name, value) for name, value in options.items()}
        grid = _grid(kwargs, {name: values[name] for name in names} | chosen)
        recipes[canonical(knobs(config))] = Recipe(constants, grid, sizes, plain_options, own, position)
    assert shared is not None
    return Call(reader.tensors(), shared, recipes), needs_hooks


def hook_position(tuner: Any, config: Any) -> int | None:
    """Return the place in an autotuner's list of a config that is launched with hooks; ``None`` without any.

    Raises:
        LeftAlone: pruning made the config, so that no other process finds its hook.
    """
    if not (config.pre_hook or tuner.user_defined_pre_hook or tuner.user_defined_post_hook):
        return None
    wanted = canonical(knobs(config))
    for position, known in enumerate(tuner.configs):
        if known.pre_hook is config.pre_hook and canonical(knobs(known)) == wanted:
            return position
    raise LeftAlone(
        "its pruning makes a config with a pre_hook that does more than zero or reshape, which no other process finds"
    )


def hook_names(tuner: Any) -> tuple[str, ...]:
    """Return the names of an autotuner's hooks, its configs' by their position: by these another process finds them."""
    own = [name for name in ("pre_hook", "post_hook") if getattr(tuner, f"user_defined_{name}")]
    return (*own, *(f"configs[{place}].pre_hook" for place, config in enumerate(tuner.configs) if config.pre_hook))


def contents(captured: Mapping[str, Any], elements: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return copies on the CPU of a call's own tensors, each as a row of all its elements.

    Raises:
        LeftAlone: one holds addresses, or they are too large to be kept.
    """
    import torch

    size = sum(elements[name].elements * value.element_size() for name, value in captured.items())
    if size > MAX_CAPTURED_BYTES:
        raise LeftAlone(
            f"its tensors of integers ({', '.join(captured)}) have {size >> 20} MiB, more than is captured of a call "
            f"({MAX_CAPTURED_BYTES >> 20} MiB)"
        )
    found = {}
    for name, value in captured.items():
        row = torch.as_strided(value, (elements[name].elements,), (1,), value.storage_offset()).cpu()
        if row.dtype.itemsize == ADDRESS_BYTES and _holds_address(row):
            raise LeftAlone(f"its argument {name} is a table of pointers")
        found[name] = row
    return found


def _holds_address(row: Any) -> bool:
    import torch

    # An unsigned number that needs the sign's bit is no address.
    numbers = row.view(torch.int64)
    return bool(((numbers >= SMALLEST_ADDRESS) & (numbers < LARGEST_ADDRESS)).any())


def jitted(function: Any) -> Any:
    """Return the ``@triton.jit`` function below an autotuner and heuristics.

    Raises:
        LeftAlone: there is something else between them.
    """
    inner = function
    while not hasattr(inner, "params"):
        if not is_wrapper(inner):
            raise LeftAlone(f"its function is a {type(inner).__name__}, not a @triton.jit function")
        inner = inner.fn
    return inner


def autotuner_in(function: Any) -> Any:
    """Return the outermost autotuner of a function, below heuristics; ``None`` without one."""
    while is_wrapper(function) and not is_wrapper(function, "Autotuner"):
        function = function.fn
    return function if is_wrapper(function, "Autotuner") else None


def is_wrapper(function: Any, kind: str = "") -> bool:
    """Return whether this is Triton's autotuner or heuristics (or the one ``kind`` of them), or derives from them."""
    kinds = (kind,) if kind else ("Autotuner", "Heuristics")
    return any(base.__name__ in kinds for base in type(function).__mro__)


def _layers(function: Any) -> tuple[list[tuple[str, Any]], Any]:
    """Return the heuristics above a ``@triton.jit`` function, in the order in which they are evaluated, and it."""
    found: list[tuple[str, Any]] = []
    while not hasattr(function, "params"):
        if not is_wrapper(function, "Heuristics"):
            raise LeftAlone(f"its function is a {type(function).__name__}, not a @triton.jit function")
        found += function.values.items()
        function = function.fn
    return found, function


class _ArgumentReader:
    """Reads arguments as plain data, and keeps what is known of the tensors among them."""

    def __init__(self, tuner: Any, captured: dict[str, Any]) -> None:
        self.zeroed: set[int] = set()
        self._reset = frozenset(tuner.reset_to_zero)
        self._captured = captured
        self._tensors: dict[str, tuple[Any, Tensor]] = {}
        self._places: dict[tuple[int, str], str] = {}

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors; those that a hook has zeroed begin as zeros."""
        found = {}
        for name, (value, tensor) in self._tensors.items():
            if id(value) in self.zeroed:
                self._captured.pop(name, None)
                tensor = Tensor(tensor.dtype, tensor.elements, "zeros", tensor.shape, tensor.strides)
            found[name] = tensor
        return found

    def read(self, name: str, value: Any) -> Argument:
        """Return an argument as a Build has it.

        Raises:
            LeftAlone: another process cannot make it.
        """
        if isinstance(value, tuple) and not is_named(value):
            return tuple(self.read(f"{name}.{place}", item) for place, item in enumerate(value))
        if value is None or type(value) in (bool, int, float):
            return value  # type: ignore[no-any-return]
        if is_descriptor(value):
            return {
                "descriptor": self._tensor(name, value.base),
                "shape": list(map(int, value.shape)),
                "strides": list(map(int, value.strides)),
                "block_shape": list(map(int, value.block_shape)),
                "padding": value.padding,
            }
        if _is_tensor(value):
            return self._tensor(name, value)
        kind = f"named tuple {type(value).__name__}" if is_named(value) else type(value).__name__
        raise LeftAlone(f"its argument {name} is a {kind}")

    def _tensor(self, name: str, value: Any) -> str:
        dtype = str(value.dtype).removeprefix("torch.")
        address: int = value.data_ptr()
        if (address, dtype) in self._places:
            # The same memory under two names, as in a kernel that works in place.
            return self._places[address, dtype]
        if address % ALIGNMENT_BYTES:
            raise LeftAlone(f"its argument {name} is not aligned to {ALIGNMENT_BYTES} bytes")
        if dtype.startswith("complex"):
            raise LeftAlone(f"its argument {name} is a tensor of {dtype}, which Triton does not have")
        fill = "zeros" if name in self._reset else "uniform" if dtype in FLOATING else CAPTURED
        if fill == CAPTURED:
            self._captured[name] = value
        elements = value.untyped_storage().nbytes() // value.element_size() - value.storage_offset()
        self._tensors[name] = value, Tensor(dtype, elements, fill, tuple(value.shape), tuple(value.stride()))
        self._places[address, dtype] = name
        return name


def _grid(kwargs: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[int, ...]:
    grid = kwargs["grid"]
    sizes = grid(dict(values)) if callable(grid) else grid
    found = tuple(int(size) for size in (sizes if isinstance(sizes, tuple | list) else (sizes,)))
    if not 1 <= len(found) <= 3:
        raise LeftAlone(f"its grid has {len(found)} dimensions")
    if min(found) < 1:
        raise NothingToLaunch(f"its grid is {found}")
    return found


def _constant(name: str, value: Any) -> Any:
    try:
        return constant(name, value)
    except (TypeError, ValueError) as error:
        raise LeftAlone(str(error)) from error


__all__ = [
    "CAPTURED",
    "Call",
    "Descriptor",
    "LeftAlone",
    "NothingToLaunch",
    "Recipe",
    "Tensor",
    "autotuner_in",
    "contents",
    "evaluate",
    "hook_names",
    "jitted",
    "key_of",
    "knobs",
    "tensor_names",
]
