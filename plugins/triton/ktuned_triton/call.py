"""One call of an autotuned function, evaluated where it is made: its tuning key, and each config as plain data.

Only the application can prune configs, compute heuristics and evaluate grids: their functions need its arguments. A
record of the results is all that the tuning needs.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from ktuned.model import canonical
from ktuned_triton.autotune_cache import Origin, origin_from, origin_of
from ktuned_triton.build import HOOKS, Argument, Build, constant, is_named
from ktuned_triton.signature import ALIGNMENT_BYTES

FLOATING = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
"""Dtypes whose content is drawn at random; others may be indices, for which random content is not safe."""

CAPTURED = "captured"
"""Fill of a tensor whose content is the call's own."""

MAX_CAPTURED_BYTES = 256 * 2**20
"""The content of one call's tensors of integers: indices, masks, lengths. It is copied from the device in the call."""

DTYPES_KEY = "dtypes"
"""The problem key that holds the dtypes of a call's tensors."""

HOOKS_NAME = "hooks"
"""The name of the application's hooks in its kernel file."""

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
    """One config of a call: the arguments of its function, its constexprs, its grid and its compiler options.

    ``position`` is its place in the autotuner's list, where its hooks are found; ``None`` where it has none.
    """

    args: tuple[Argument, ...]
    constants: Mapping[str, Any]
    grid: tuple[int, ...]
    sizes: Mapping[str, int]
    options: Mapping[str, Any]
    position: int | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A call: its tensors by their parameters' names, and the recipe of each admitted config by its knobs' text.

    ``content`` names the file that holds the tensors whose content is the call's own; ``origin`` is the call as Triton
    keys it.
    """

    tensors: Mapping[str, Tensor]
    recipes: Mapping[str, Recipe]
    content: str = ""
    origin: Origin | None = None

    def build(self, config: str, function: str) -> Build:
        """Return the Build of a config, given as text, for a function of this name in the kernel file."""
        recipe = self.recipes[config]
        sizes: Mapping[str, Any] = recipe.sizes
        hooks: dict[str, Any] = {}
        if recipe.position is not None:
            hooks = {name: f"{HOOKS_NAME}.{name}_{recipe.position}" for name in HOOKS}
        return Build(
            function=function,
            args=recipe.args,
            constants=recipe.constants,
            grid=recipe.grid,
            options=recipe.options,
            dtypes={name: tensor.dtype for name, tensor in self.tensors.items()},
            **sizes,
            **hooks,
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
            {
                config: Recipe(**{**recipe, "args": tuple(recipe["args"]), "grid": tuple(recipe["grid"])})
                for config, recipe in fields["recipes"].items()
            },
            fields["content"],
            origin_from(fields["origin"]),
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


def key_of(tuner: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    """Return the problem that a call's tuning key is: the values of ``key``, and the dtypes of all tensors.

    The key's own arguments that a call leaves out have no value; Triton leaves them out, too.
    """
    given = {**dict(zip(tuner.arg_names, args, strict=False)), **kwargs}
    given = {name: value for name, value in given.items() if name in tuner.arg_names}
    problem = {name: scalar(given[name]) if name in given else "~" for name in tuner.keys}
    dtypes = [str(value.dtype).removeprefix("torch.") for value in given.values() if hasattr(value, "dtype")]
    return {**problem, DTYPES_KEY: " ".join(dtypes)}


def evaluate(
    tuner: Any,
    configs: list[Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    captured: dict[str, Any] | None = None,
) -> Call:
    """Return a call with all its configs, as they are after pruning.

    The tensors whose content is the call's own are put into ``captured``, by their names.

    Raises:
        LeftAlone: it cannot be tuned by another process; says why.
        NothingToLaunch: its grid is empty.
    """
    tensors: dict[str, Tensor] = {}
    integers = {} if captured is None else captured
    places: dict[tuple[int, str], str] = {}
    recipes = {}
    for config in configs:
        values, options = _arguments(tuner, config, args, kwargs)
        function = jitted(tuner)
        plain = []
        constants = {}
        for parameter in function.params:
            value = values[parameter.name]
            if parameter.is_constexpr:
                constants[parameter.name] = _constant(parameter.name, value)
            else:
                plain.append(_argument(parameter.name, value, tuner, tensors, places, integers))
        sizes = {name: options.pop(name) for name in _SIZES if name in options}
        plain_options = {name: _constant(name, value) for name, value in options.items()}
        position = hook_position(tuner, config)
        recipe = Recipe(tuple(plain), constants, _grid(kwargs, values), sizes, plain_options, position)
        recipes[canonical(knobs(config))] = recipe
    by_text = {canonical(knobs(config)): config for config in configs}
    origin = origin_of(tuner, jitted(tuner), key_of(tuner, args, kwargs), by_text, args, kwargs)
    return Call(tensors, recipes, origin=origin)


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
    raise LeftAlone("its pruning makes a config with a pre_hook, which no other process finds")


def hook_names(tuner: Any) -> tuple[str, ...]:
    """Return the names of an autotuner's hooks, its configs' by their position: by these another process finds them."""
    own = [name for name in HOOKS if getattr(tuner, f"user_defined_{name}")]
    return (*own, *(f"configs[{place}].pre_hook" for place, config in enumerate(tuner.configs) if config.pre_hook))


def autotuner_in(function: Any) -> Any:
    """Return the outermost autotuner of a function, below heuristics; ``None`` without one."""
    while is_wrapper(function) and not is_wrapper(function, "Autotuner"):
        function = function.fn
    return function if is_wrapper(function, "Autotuner") else None


def contents(captured: Mapping[str, Any], elements: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return copies on the CPU of a call's own tensors, each as a row of all its elements.

    Raises:
        LeftAlone: one holds addresses, or they are too large to be kept.
    """
    import torch

    size = sum(elements[name].elements * value.element_size() for name, value in captured.items())
    if size > MAX_CAPTURED_BYTES:
        raise LeftAlone(
            f"its tensors of integers ({', '.join(captured)}) have {size >> 20} MiB, more than is captured of a call"
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


def is_wrapper(function: Any, kind: str = "") -> bool:
    """Return whether this is Triton's autotuner or heuristics (or the one ``kind`` of them), or derives from them."""
    kinds = (kind,) if kind else ("Autotuner", "Heuristics")
    return any(base.__name__ in kinds for base in type(function).__mro__)


def _arguments(
    tuner: Any, config: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values of all parameters for one config, heuristics in their order, and the compiler's options."""
    positional = dict(zip(tuner.arg_names, args, strict=False))
    chosen = config.all_kwargs()
    if conflicts := sorted(kwargs.keys() & config.kwargs.keys()):
        raise ValueError(f"Conflicting meta-parameters: {', '.join(conflicts)}. Do not pass what the autotuner sets.")
    named = {**kwargs, **chosen}
    function = tuner.fn
    while not hasattr(function, "params"):
        if not is_wrapper(function, "Heuristics"):
            raise LeftAlone(f"its function is a {type(function).__name__}, not a @triton.jit function")
        for name, heuristic in function.values.items():
            named[name] = heuristic({**positional, **named})
        function = function.fn
    values = {}
    for parameter in function.params:
        name = parameter.name
        if name in named:
            values[name] = named[name]
        elif name in positional:
            values[name] = positional[name]
        elif parameter.default is not inspect.Parameter.empty:
            values[name] = parameter.default
        else:
            raise TypeError(f"{function.__name__}() is missing the argument {name!r}")
    options = {name: value for name, value in named.items() if name not in values and name not in _LAUNCH_ONLY}
    return values, options


def _grid(kwargs: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[int, ...]:
    grid = kwargs["grid"]
    sizes = grid(dict(values)) if callable(grid) else grid
    found = tuple(int(size) for size in (sizes if isinstance(sizes, tuple | list) else (sizes,)))
    if not 1 <= len(found) <= 3:
        raise LeftAlone(f"its grid has {len(found)} dimensions")
    if min(found) < 1:
        raise NothingToLaunch(f"its grid is {found}")
    return found


def _argument(
    name: str,
    value: Any,
    tuner: Any,
    tensors: dict[str, Tensor],
    places: dict[tuple[int, str], str],
    captured: dict[str, Any],
) -> Argument:
    if isinstance(value, tuple) and not is_named(value):
        return tuple(_argument(f"{name}.{i}", item, tuner, tensors, places, captured) for i, item in enumerate(value))
    if value is None or type(value) in (bool, int, float):
        return value  # type: ignore[no-any-return]
    if not (hasattr(value, "untyped_storage") and hasattr(value, "data_ptr")):
        kind = f"named tuple {type(value).__name__}" if is_named(value) else type(value).__name__
        raise LeftAlone(f"its argument {name} is a {kind}")
    dtype = str(value.dtype).removeprefix("torch.")
    address: int = value.data_ptr()
    if (address, dtype) in places:
        # The same memory under two names, as in a kernel that works in place.
        return places[address, dtype]
    if address % ALIGNMENT_BYTES:
        raise LeftAlone(f"its argument {name} is not aligned to {ALIGNMENT_BYTES} bytes")
    if dtype.startswith("complex"):
        raise LeftAlone(f"its argument {name} is a tensor of {dtype}, which Triton does not have")
    fill = "zeros" if name in tuner.reset_to_zero else "uniform" if dtype in FLOATING else CAPTURED
    if fill == CAPTURED:
        captured[name] = value
    size = value.element_size()
    elements = value.untyped_storage().nbytes() // size - value.storage_offset()
    tensors[name] = Tensor(dtype, elements, fill, tuple(value.shape), tuple(value.stride()))
    places[address, dtype] = name
    return name


def _constant(name: str, value: Any) -> Any:
    try:
        return constant(name, value)
    except (TypeError, ValueError) as error:
        raise LeftAlone(str(error)) from error
