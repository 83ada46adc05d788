"""Problem files: references in PyTorch, in KernelBench's format, whose candidates ktuned judges.

A problem file defines a module ``Model``, or a function ``reference``, and what it is called with::

    class Model(nn.Module):
        def __init__(self, features):
            super().__init__()
            self.norm = nn.LayerNorm(features)

        def forward(self, x):
            return self.norm(x)


    def get_init_inputs():
        return [256]


    def get_inputs():
        return [torch.rand(16, 256)]

A candidate is one function, which writes into tensors that it is given: here ``candidate(x, norm_weight, norm_bias,
out)``. The parameters and buffers of the ``Model`` are inputs, as the tensors of ``get_inputs`` are. Otherwise a
candidate would have to draw the same random numbers as the ``Model``.

A problem file may give the tolerances ``rtol`` and ``atol``. By default both are KernelBench's: 1e-4, and 1e-2 if an
output is in half precision.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any

from ktuned.model import UsageError

HALF = ("float16", "bfloat16")
HALF_TOLERANCE = 1e-2


@dataclass(frozen=True)
class Argument:
    """An argument of a candidate: a tensor, or a number.

    Attributes:
        name: its name.
        dtype: a tensor's dtype; empty for a number.
        shape: a tensor's shape.
        value: the number.
        fill: the further arguments of ``ktuned.tensor`` that make such a tensor, if ``get_inputs`` draws it by one call
            of ``torch.rand``, ``torch.randn`` or ``torch.randint``. ktuned then makes it in a fraction of the time, and
            each judged launch gets other numbers, while the code of a problem file runs only a few times.
        is_input: whether the tensor comes from ``get_inputs``.
        is_output: whether the candidate writes the tensor.
    """

    name: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    value: bool | int | float = 0
    fill: Mapping[str, Any] = field(default_factory=dict)
    is_input: bool = False
    is_output: bool = False


def load_problem(name: str) -> ProblemFile:
    """Return the problem file that can be imported as ``name``; it is opened once.

    Raises:
        UsageError: it lacks a function that a problem file needs.
    """
    module = import_module(name)
    # Kept in the module, so that it is dropped with it after an edit.
    if "_ktuned_problem" not in vars(module):
        module.__dict__["_ktuned_problem"] = ProblemFile(module)
    return vars(module)["_ktuned_problem"]  # type: ignore[no-any-return]


class ProblemFile:
    """A problem file that was imported.

    Raises:
        UsageError: it lacks a function that a problem file needs.
    """

    def __init__(self, module: ModuleType) -> None:
        defined = vars(module)
        if not {"Model", "reference"} & defined.keys() or "get_inputs" not in defined:
            raise UsageError(f"{module.__file__}: a problem file defines get_inputs, and Model or reference")
        self._module = module
        function = module.Model.forward if "Model" in defined else module.reference
        self._parameters = [name for name in inspect.signature(function).parameters if name != "self"]
        # The reference's model, its parameters and buffers, and the numbers among its inputs: made for the first run.
        self._model: Any = None
        self._state: dict[str, Any] = {}
        self._numbers: dict[str, Any] = {}

    def make_inputs(self, *names: str) -> dict[str, Any]:
        """Return these tensors of ``get_inputs`` and of a new ``Model``, by the names that a candidate has."""
        state = {name: value.data for name, value in _name_state(self._make_model()).items()}
        made = state if state.keys() >= set(names) else {**self._call_get_inputs(), **state}
        return {name: made[name] for name in names}

    def run_reference(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs for these inputs, by the names that a candidate has."""
        import torch

        with torch.no_grad():
            if self._model is None:
                self._numbers = {name: one for name, one in self._call_get_inputs().items() if not _is_tensor(one)}
                self._model = self._make_model()
                self._state = _name_state(self._model)
            for name, held in self._state.items():
                held.data = tensors[name]
            given = [tensors[name] if name in tensors else self._numbers[name] for name in self._parameters]
            return _name_outputs(self._model(*given))

    def describe_arguments(self) -> list[Argument]:
        """Return the arguments of a candidate: inputs, parameters and buffers, outputs. Most problems need no memory.

        Raises:
            UsageError: an input is neither a tensor nor a number, or an output is no tensor.
        """
        import torch

        # Most functions of torch run on tensors without content. For the others, run the problem itself.
        for device in ("meta", "cpu"):
            try:
                with torch.device(device), torch.no_grad():
                    with (calls := _record_random_calls()):
                        inputs = self._call_get_inputs()
                    model = self._make_model()
                    outputs = _name_outputs(model(*inputs.values()))
                break
            except (NotImplementedError, RuntimeError, ValueError):
                if device == "cpu":
                    raise
        fills = {name: calls.find_fill(value) for name, value in inputs.items()}
        arguments = [_describe_argument(name, one, is_input=True, fill=fills[name]) for name, one in inputs.items()]
        arguments += [_describe_argument(name, value) for name, value in _name_state(model).items()]
        arguments += [_describe_argument(name, value, is_output=True) for name, value in outputs.items()]
        names = [argument.name for argument in arguments]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise UsageError(f"{self._module.__file__}: two arguments of a candidate would have the name {twice[0]}")
        return arguments

    def read_tolerances(self, arguments: Sequence[Argument]) -> dict[str, float]:
        """Return the tolerances that differ from those of a kernel file."""
        given: dict[str, float] = {
            name: vars(self._module)[name] for name in ("rtol", "atol") if name in vars(self._module)
        }
        has_half = any(one.is_output and one.dtype in HALF for one in arguments)
        return given or (dict.fromkeys(("rtol", "atol"), HALF_TOLERANCE) if has_half else {})

    def _call_get_inputs(self) -> dict[str, Any]:
        values = self._module.get_inputs()
        names = [*self._parameters, *(f"x{number}" for number in range(len(self._parameters), len(values)))]
        return dict(zip(names, values, strict=False))

    def _make_model(self) -> Any:
        defined = vars(self._module)
        if "Model" not in defined:
            return defined["reference"]
        return defined["Model"](*defined.get("get_init_inputs", list)())


def _record_random_calls() -> Any:
    """Return a context that records which tensors are made by one call that draws random numbers."""
    import torch
    from torch.overrides import TorchFunctionMode

    class RandomCalls(TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self._made: list[tuple[Any, dict[str, Any]]] = []

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            if func is torch.rand:
                self._made.append((made, {"low": 0.0, "high": 1.0}))
            elif func is torch.randn:
                self._made.append((made, {"fill": "normal"}))
            elif func is torch.randint and not kwargs:
                low, high = (0, args[0]) if len(args) == 2 else args[:2]
                self._made.append((made, {"fill": "integer", "low": low, "high": high}))
            return made

        def find_fill(self, value: Any) -> dict[str, Any]:
            # A tensor that was changed in place has a version.
            return next((fill for made, fill in self._made if made is value and not value._version), {})

    return RandomCalls()


def _is_tensor(value: object) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _name_state(model: Any) -> dict[str, Any]:
    """Return the parameters and buffers of a model by names that a function's arguments may have."""
    if not hasattr(model, "named_parameters"):
        return {}
    state = (*model.named_parameters(), *model.named_buffers())
    return {name.replace(".", "_"): value for name, value in state}


def _name_outputs(outputs: Any) -> dict[str, Any]:
    if isinstance(outputs, list | tuple):
        return {f"out{number}": output for number, output in enumerate(outputs)}
    return {"out": outputs}


def _describe_argument(
    name: str, value: Any, *, is_input: bool = False, is_output: bool = False, fill: Mapping[str, Any] | None = None
) -> Argument:
    if _is_tensor(value):
        dtype = str(value.dtype).removeprefix("torch.")
        return Argument(name, dtype, tuple(value.shape), fill=fill or {}, is_input=is_input, is_output=is_output)
    if isinstance(value, bool | int | float) and is_input:
        return Argument(name, value=value, is_input=True)
    raise UsageError(f"{name} is of type {type(value).__name__}; a candidate takes only tensors and numbers")
