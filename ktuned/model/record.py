"""Records: frozen dataclasses that are quick to define, because a worker defines some sixty of them at each start.

The standard decorator compiles six methods for each class, which takes half a millisecond. Records share the methods of
one base class. Making one takes 1 µs longer; what is made at each lookup is therefore a standard dataclass.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Never, TypeVar, dataclass_transform

_T = TypeVar("_T", bound="Record")


class Record:
    """The methods of all records: construction, equality, a readable form; no attribute can be set."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]
    __match_args__: ClassVar[tuple[str, ...]]
    _blank: ClassVar[dict[str, Any]]
    """Every field's default, in the fields' order; the field itself if a value must be given or made by a factory."""
    _made: ClassVar[dict[str, dataclasses.Field[Any]]]
    """The fields without a plain default."""
    _omitted: ClassVar[tuple[str, ...]] = ()
    """Fields that are left out of ``vars()``, and so on the wire, while they have their plain defaults."""

    def __init__(self, *positional: Any, **named: Any) -> None:
        cls = type(self)
        blank = cls._blank
        if positional:
            given = dict(zip(cls.__match_args__, positional, strict=False))
            if len(positional) > len(given) or named.keys() & given.keys():
                raise TypeError(f"{cls.__name__} has the fields {', '.join(cls.__match_args__)}")
            named = given | named
        values = blank | named
        if len(values) > len(blank):
            raise TypeError(f"{cls.__name__} has the fields {', '.join(cls.__match_args__)}")
        if len(named) < len(blank):
            for name, field in cls._made.items():
                if values[name] is field:
                    values[name] = self._make_value(field)
        for name in cls._omitted:
            if values[name] == blank[name]:
                del values[name]
        vars(self).update(values)

    def _make_value(self, field: dataclasses.Field[Any]) -> Any:
        if field.default_factory is not dataclasses.MISSING:
            return field.default_factory()
        raise TypeError(f"{type(self).__name__} needs the field {field.name}")

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        # In the order of the fields: what was decoded from a map has them in the map's.
        return hash((type(self), *map(vars(self).__getitem__, self._blank)))

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({values})"

    def __setattr__(self, name: str, value: object) -> Never:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> Never:
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


class SparseRecord(Record):
    """A record of many facts of which each case has few: every field has a default, and an instance holds the others.

    So its ``vars()`` is what the store and the wire have of it, without a null for each fact that is unknown.
    """

    def __init__(self, **named: Any) -> None:
        blank = self._blank
        if not named.keys() <= blank.keys():
            raise TypeError(f"{type(self).__name__} has the fields {', '.join(blank)}")
        vars(self).update({name: value for name, value in named.items() if value is not blank[name]})


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def record(cls: type[_T]) -> type[_T]:
    """Make a subclass of :class:`Record` a dataclass with the methods of its base."""
    made = dataclasses.dataclass(init=False, repr=False, eq=False)(cls)
    fields = dataclasses.fields(made)
    made._made = {field.name: field for field in fields if field.default is dataclasses.MISSING}
    made._blank = {field.name: made._made.get(field.name, field.default) for field in fields}
    return made
