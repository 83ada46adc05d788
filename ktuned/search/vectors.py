"""Constraints evaluated for many configs at once, whatever Python they are written in.

The constraint itself is called, with vectors in place of its knobs' values. Arithmetic and comparisons give vectors.
Where Python needs one value (the test of an ``if``, ``and``, ``max``, an index, a hash, a function of ``math``), the
batch is split into the configs that agree on it, and the call is repeated for each part with that answer, much as a GPU
executes divergent branches. So each config takes the path that it would take alone. Integers that 64 bits may not hold
become Python's own.

Imported only where there is NumPy.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ktuned.model import Record, Scalar, record

Array = NDArray[Any]

LARGEST = 2**62
"""Integers up to here stay in 64 bits: sums of two still do, and a product is checked by its factors' bounds."""

EXACT_FLOAT = 2**53
"""Integers up to here are exact as floating-point numbers."""

MAX_BITS = 4_096
"""Size of a power or a shift, in bits: ``9**9**9`` would take the memory of the machine."""

MAX_CALLS = 1_500
"""Calls for one batch: ``max`` of nine knobs takes some 500; a constraint that needs more is not worth it."""

MAX_ANSWERS = 256
"""Values that one question may split a batch into; an axis rarely has more."""


class NotVectorizable(Exception):
    """The constraint cannot be evaluated for many configs at once."""


class _Diverged(BaseException):
    """The configs of a call differ in what it must know. Not an ``Exception``, which the constraint may catch."""

    def __init__(self, answers: Sequence[object], groups: Array) -> None:
        super().__init__()
        self.answers = answers
        self.groups = groups


class _TooManyAnswers(BaseException):
    """A question splits a batch into more than :data:`MAX_ANSWERS` parts."""


@record
class _Part(Record):
    """Places of configs in a batch, and the answers to the questions on which they agree so far."""

    places: Array
    answers: tuple[object, ...]


class _Call:
    """One call of the constraint: answers its questions in order, until the configs differ in one."""

    def __init__(self, answers: Sequence[object]) -> None:
        self.answers = list(answers)
        self._asked = 0

    def answer_question(self, array: Array) -> Any:
        number = self._asked
        self._asked += 1
        if number == len(self.answers):
            self.answers.append(_find_common_value(array))
        return self.answers[number]


def _find_common_value(array: Array) -> object:
    """Return the value that a whole array has."""
    if array.dtype == bool:
        number = int(np.count_nonzero(array))
        if 0 < number < len(array):
            raise _Diverged((False, True), array.astype(np.intp))
        return number > 0
    if array.dtype == object:
        kinds = dict.fromkeys((type(value), value) for value in array)
        if len(kinds) > MAX_ANSWERS:
            raise _TooManyAnswers
        values: Sequence[object] = [value for _, value in kinds]
        place = {kind: number for number, kind in enumerate(kinds)}
        groups = np.array([place[type(value), value] for value in array], np.intp)
    else:
        found, groups = np.unique(array, return_inverse=True)
        values = found[: MAX_ANSWERS + 1].tolist()
        if len(values) > MAX_ANSWERS:
            raise _TooManyAnswers
    if len(values) > 1:
        raise _Diverged(values, groups)
    return values[0]


class VectorizedConstraints:
    """The constraints of a space, asked about many configs at once.

    ``constraints`` take a mapping of the knobs to values; ``axes`` hold these values.
    """

    def __init__(
        self, axes: Mapping[str, Sequence[Scalar]], constraints: Sequence[Callable[[Mapping[str, Any]], object]]
    ) -> None:
        self._constraints = constraints
        self._axes = {knob: _Axis(values) for knob, values in axes.items()}

    def admit_configs(self, codes: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Return whether the constraints admit each config; a row of ``codes`` holds the positions on one axis.

        Raises:
            Unable: that cannot be found out so; a constraint that raises for one config is such a case, too.
        """
        admitted = np.ones(codes.shape[1], bool)
        with np.errstate(all="ignore"):
            for constraint in self._constraints:
                if admitted.all():
                    admitted = self._ask_constraint(constraint, codes)
                else:
                    admitted[admitted] = self._ask_constraint(constraint, codes[:, admitted])
        return admitted

    def _ask_constraint(self, constraint: Callable[[Mapping[str, Any]], object], codes: Array) -> NDArray[np.bool_]:
        number = codes.shape[1]
        admitted = np.zeros(number, bool)
        parts = [_Part(np.arange(number), ())] if number else []
        calls = 0
        while parts:
            part = parts.pop()
            calls += 1
            if calls > MAX_CALLS:
                raise NotVectorizable(f"it takes more than {MAX_CALLS} paths")
            call = _Call(part.answers)
            rows = codes if len(part.places) == number else codes[:, part.places]
            vectors = {
                knob: Vector(call, axis.values_at(row), axis.largest)
                for row, (knob, axis) in zip(rows, self._axes.items(), strict=True)
            }
            try:
                admitted[part.places] = _truth_of(constraint(vectors))
            except _Diverged as split:
                parts += [
                    _Part(part.places[split.groups == group], (*call.answers, answer))
                    for group, answer in enumerate(split.answers)
                ]
            except _TooManyAnswers:
                raise NotVectorizable(f"a value has more than {MAX_ANSWERS} cases") from None
            except NotVectorizable:
                raise
            except Exception as error:
                raise NotVectorizable(f"it raises {type(error).__name__}: {error}") from error
        return admitted


class _Axis:
    """The values of one knob."""

    def __init__(self, values: Sequence[Scalar]) -> None:
        self._range = values if isinstance(values, range) else None
        self.largest = 0
        kinds = {int} if isinstance(values, range) else set(map(type, values))
        if kinds <= {int, bool}:
            self.largest = (
                max(abs(int(values[0])), abs(int(values[-1]))) if self._range else max(map(_magnitude, values))
            )
        if isinstance(values, range):
            self._table: Array = np.zeros(0)
        elif len(kinds) == 1 and kinds <= {int, bool, float} and self.largest <= LARGEST:
            self._table = np.array(values)
        else:
            self._table = np.array(values, object)

    def values_at(self, places: Array) -> Array:
        """Return the values at some positions."""
        if self._range is None:
            return np.asarray(self._table[places])
        return places.astype(np.int64) * self._range.step + self._range.start


def _magnitude(value: Scalar) -> int:
    return abs(int(value))


class Vector:
    """One value for each config of a call; ``largest`` bounds the magnitude of integers.

    It behaves as the single values would, and has no public name for that reason: ``c.BM.bit_length()`` is asked of
    the value.
    """

    __slots__ = ("_array", "_call", "_largest")

    def __init__(self, call: _Call, array: Array, largest: int = 0) -> None:
        self._call = call
        self._array = array
        self._largest = largest

    def __bool__(self) -> bool:
        return bool(self._call.answer_question(_truth_of(self)))

    def __hash__(self) -> int:
        return hash(_shared_value(self))

    def __getattr__(self, name: str) -> Any:
        return getattr(_shared_value(self), name)

    def __eq__(self, other: object) -> Any:
        return _compare_values(self, other, operator.eq)

    def __ne__(self, other: object) -> Any:
        return _compare_values(self, other, operator.ne)

    def __lt__(self, other: object) -> Any:
        return _compare_values(self, other, operator.lt)

    def __le__(self, other: object) -> Any:
        return _compare_values(self, other, operator.le)

    def __gt__(self, other: object) -> Any:
        return _compare_values(self, other, operator.gt)

    def __ge__(self, other: object) -> Any:
        return _compare_values(self, other, operator.ge)

    def __pos__(self) -> Vector:
        return Vector(self._call, _as_numbers(self._array), self._largest)

    def __neg__(self) -> Vector:
        return Vector(self._call, -_as_numbers(self._array), self._largest)

    def __invert__(self) -> Vector:
        return Vector(self._call, ~_as_numbers(self._array), self._largest + 1)

    def __abs__(self) -> Vector:
        return Vector(self._call, abs(_as_numbers(self._array)), self._largest)

    def __contains__(self, item: object) -> bool:
        return item in _shared_value(self)

    def __iter__(self) -> Iterator[Any]:
        return iter(_shared_value(self))


def _truth_of(result: object) -> Any:
    """Return the truth of a constraint's result, for all configs or for each."""
    return result._array.astype(bool) if isinstance(result, Vector) else bool(result)


def _shared_value(vector: Vector) -> Any:
    """Return the value that all configs of the call have; those that differ are called apart."""
    return vector._call.answer_question(vector._array)


def _as_numbers(array: Array) -> Array:
    """Return an array to calculate with: two of Python's truth values add up to 2, NumPy's to true."""
    return array.astype(np.int64) if array.dtype == bool else array


class _Pair:
    """Two operands as arrays that calculate as Python does: integers that may grow too large are Python's own."""

    def __init__(self, left: Any, right: Any) -> None:
        self.call = next(one._call for one in (left, right) if isinstance(one, Vector))
        self.left, self.left_largest = _convert_operand(left)
        self.right, self.right_largest = _convert_operand(right)
        kinds = {_dtype_kind(self.left), _dtype_kind(self.right)}
        if "O" in kinds or ("f" in kinds and max(self.left_largest, self.right_largest) > EXACT_FLOAT):
            self.widen_to_python()

    @property
    def are_integers(self) -> bool:
        return {_dtype_kind(self.left), _dtype_kind(self.right)} <= {"i", "b"}

    @property
    def is_wide(self) -> bool:
        return "O" in {_dtype_kind(self.left), _dtype_kind(self.right)}

    def widen_to_python(self) -> None:
        """Go on with Python's own numbers."""
        self.left, self.right = _widen_to_python(self.left), _widen_to_python(self.right)

    def apply_operation(self, operation: Callable[[Any, Any], Any], largest: int) -> Vector:
        if self.are_integers and largest > LARGEST:
            self.widen_to_python()
        found = operation(self.left, self.right)
        return Vector(self.call, found, 0 if found.dtype.kind == "f" else largest)

    def split_zero_divisors(self) -> None:
        """Have configs that divide by zero called apart; those raise as they would alone."""
        is_zero = np.asarray(self.right == 0, bool)
        if bool(is_zero) if is_zero.ndim == 0 else self.call.answer_question(is_zero):
            raise ZeroDivisionError("division by zero")


def _convert_operand(value: Any) -> tuple[Any, int]:
    if isinstance(value, Vector):
        array = _as_numbers(value._array)
        return array, value._largest
    if isinstance(value, int):
        return (np.int64(value), abs(int(value))) if abs(value) <= LARGEST else (np.array(value, object), abs(value))
    return (np.float64(value), 0) if isinstance(value, float) else (np.array(value, object), 0)


def _dtype_kind(array: Any) -> str:
    return str(array.dtype.kind)


def _widen_to_python(array: Any) -> Any:
    return array if _dtype_kind(array) == "O" else np.asarray(array).astype(object)


def _compare_values(one: Vector, other: object, operation: Callable[[Any, Any], Any]) -> Any:
    if not isinstance(other, Vector | int | float | str):
        return NotImplemented
    pair = _Pair(one, other)
    return Vector(pair.call, np.asarray(operation(pair.left, pair.right)).astype(bool), 1)


def _add_operands(pair: _Pair, operation: Callable[[Any, Any], Any]) -> Vector:
    return pair.apply_operation(operation, pair.left_largest + pair.right_largest)


def _multiply_operands(pair: _Pair, operation: Callable[[Any, Any], Any]) -> Vector:
    return pair.apply_operation(operation, pair.left_largest * pair.right_largest)


def _combine_bits(pair: _Pair, operation: Callable[[Any, Any], Any]) -> Vector:
    return pair.apply_operation(operation, 2 * max(pair.left_largest, pair.right_largest) + 1)


def _divide_operands(pair: _Pair, operation: Callable[[Any, Any], Any]) -> Vector:
    pair.split_zero_divisors()
    if operation is operator.truediv and pair.are_integers:
        if max(pair.left_largest, pair.right_largest) > EXACT_FLOAT:
            pair.widen_to_python()
        return pair.apply_operation(operation, 0)
    return pair.apply_operation(operation, max(pair.left_largest, pair.right_largest) + 1)


def _raise_to_power(pair: _Pair, operation: Callable[[Any, Any], Any]) -> Vector:
    """Raise to powers and shift; NumPy does as Python does where no exponent is negative and the result is small."""
    if pair.is_wide:
        raise NotVectorizable("a power of large numbers")
    if not pair.are_integers:
        pair.widen_to_python()
        return pair.apply_operation(operation, 0)
    exponent, bits = pair.right_largest, pair.left_largest.bit_length()
    size = {operator.pow: exponent * bits, operator.lshift: exponent + bits}.get(operation, bits)
    if size > MAX_BITS:
        raise NotVectorizable(f"an integer of more than {MAX_BITS} bits")
    if exponent > LARGEST.bit_length() or np.any(pair.right < 0):
        pair.widen_to_python()
    return pair.apply_operation(operation, 2**size)


_OPERATIONS: Mapping[str, tuple[Callable[[Any, Any], Any], Callable[[_Pair, Callable[[Any, Any], Any]], Vector]]] = {
    "add": (operator.add, _add_operands),
    "sub": (operator.sub, _add_operands),
    "mul": (operator.mul, _multiply_operands),
    "and": (operator.and_, _combine_bits),
    "or": (operator.or_, _combine_bits),
    "xor": (operator.xor, _combine_bits),
    "truediv": (operator.truediv, _divide_operands),
    "floordiv": (operator.floordiv, _divide_operands),
    "mod": (operator.mod, _divide_operands),
    "pow": (operator.pow, _raise_to_power),
    "lshift": (operator.lshift, _raise_to_power),
    "rshift": (operator.rshift, _raise_to_power),
}

_OF_ONE_VALUE = ("int", "float", "index", "str", "repr", "format", "round", "trunc", "floor", "ceil", "len", "getitem")
"""Python's protocols that give one value; they are asked of the value that the configs of a call share."""


def _make_binary_operators(
    operation: Callable[[Any, Any], Any], apply: Callable[[_Pair, Callable[[Any, Any], Any]], Vector]
) -> tuple[Callable[[Vector, Any], Any], Callable[[Vector, Any], Any]]:
    def forward(self: Vector, other: Any) -> Any:
        return apply(_Pair(self, other), operation) if isinstance(other, Vector | int | float) else NotImplemented

    def reflected(self: Vector, other: Any) -> Any:
        return apply(_Pair(other, self), operation) if isinstance(other, int | float) else NotImplemented

    return forward, reflected


def _ask_shared_value(name: str) -> Callable[..., Any]:
    def method(self: Vector, *given: Any) -> Any:
        return getattr(_shared_value(self), name)(*given)

    return method


for _name, (_operation, _apply) in _OPERATIONS.items():
    _forward, _reflected = _make_binary_operators(_operation, _apply)
    setattr(Vector, f"__{_name}__", _forward)
    setattr(Vector, f"__r{_name}__", _reflected)
for _name in _OF_ONE_VALUE:
    setattr(Vector, f"__{_name}__", _ask_shared_value(f"__{_name}__"))
