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
from ktuned_triton.build import Argument, Build, constant
from ktuned_triton.signature import ALIGNMENT_BYTES

FLOATING = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
"""Dtypes whose content is drawn at random; others may be indices, for which random content is not safe."""

_LAUNCH_ONLY = ("grid", "warmup")
_SIZES = ("num_warps", "num_ctas", "num_stages", "maxnreg")


class LeftAlone(Exception):
    """A call, or a whole function, that ktuned does not tune; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor argument: its dtype, and its elements from its first one to the end of its storage."""

    dtype: str
    elements: int
    fill: str


@dataclass(frozen=True, slots=True)
class Recipe:
    """One config of a call: the arguments of its function, its constexprs, its grid and its compiler options."""

    args: tuple[Argument, ...]
    constants: Mapping[str, Any]
    grid: tuple[int, ...]
    sizes: Mapping[str, int]
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """A call: its tensors by their parameters' names, and the recipe of each admitted config by its knobs' text."""

    tensors: Mapping[str, Tensor]
    recipes: Mapping[str, Recipe]

    @property
    def first(self) -> str:
        """The first config, as text."""
        return next(iter(self.recipes))

    def build(self, config: str, function: str) -> Build:
        """Return the Build of a config, given as text, for a function of this name in the kernel file."""
        recipe = self.recipes[config]
        return Build(
            function=function,
            args=recipe.args,
            constants=recipe.constants,
            grid=recipe.grid,
            options=recipe.options,
            dtypes={name: tensor.dtype for name, tensor in self.tensors.items()},
            **recipe.sizes,
        )

    def to_json(self) -> str:
        """Return the text of a record."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read :meth:`to_json`'s text."""
        fields = json.loads(text)
        return cls(
            {name: Tensor(**tensor) for name, tensor in fields["tensors"].items()},
            {
                config: Recipe(**{**recipe, "args": tuple(recipe["args"]), "grid": tuple(recipe["grid"])})
                for config, recipe in fields["recipes"].items()
            },
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
    return {**problem, "dtypes": " ".join(dtypes)}


def evaluate(tuner: Any, configs: list[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
    """Return a call with all its configs, as they are after pruning.

    Raises:
        LeftAlone: it cannot be tuned by another process; says why.
    """
    tensors: dict[str, Tensor] = {}
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
                plain.append(_argument(parameter.name, value, tuner, tensors, places))
        sizes = {name: options.pop(name) for name in _SIZES if name in options}
        plain_options = {name: _constant(name, value) for name, value in options.items()}
        recipes[canonical(knobs(config))] = Recipe(tuple(plain), constants, _grid(kwargs, values), sizes, plain_options)
    return Call(tensors, recipes)


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
    if not 1 <= len(found) <= 3 or min(found) < 1:
        raise LeftAlone(f"its grid is {found}: there is nothing to launch")
    return found


def _argument(
    name: str, value: Any, tuner: Any, tensors: dict[str, Tensor], places: dict[tuple[int, str], str]
) -> Argument:
    if isinstance(value, tuple):
        return tuple(_argument(f"{name}.{i}", item, tuner, tensors, places) for i, item in enumerate(value))
    if value is None or type(value) in (bool, int, float):
        return value  # type: ignore[no-any-return]
    if not (hasattr(value, "untyped_storage") and hasattr(value, "data_ptr")):
        raise LeftAlone(f"its argument {name} is a {type(value).__name__}")
    dtype = str(value.dtype).removeprefix("torch.")
    address: int = value.data_ptr()
    if (address, dtype) in places:
        # The same memory under two names, as in a kernel that works in place.
        return places[address, dtype]
    if address % ALIGNMENT_BYTES:
        raise LeftAlone(f"its argument {name} is not aligned to {ALIGNMENT_BYTES} bytes")
    is_zeroed = name in tuner.reset_to_zero
    if dtype not in FLOATING and not is_zeroed:
        raise LeftAlone(f"its argument {name} is a tensor of {dtype}, which may hold indices or pointers")
    size = value.element_size()
    elements = value.untyped_storage().nbytes() // size - value.storage_offset()
    tensors[name] = Tensor(dtype, elements, "zeros" if is_zeroed else "uniform")
    places[address, dtype] = name
    return name


def _constant(name: str, value: Any) -> Any:
    try:
        return constant(name, value)
    except (TypeError, ValueError) as error:
        raise LeftAlone(str(error)) from error
