"""Records: frozen dataclasses that are quick to define, because a worker defines some sixty of them at each start.

The standard decorator compiles six methods for each class, which takes half a millisecond. Records share the methods of
one base class. Making a record takes 1 µs longer, so values that are made at each lookup are standard dataclasses.

The content of a record, its ``vars()``, is also its form in the store and on the wire. A class may name fields that are
left out while they have their defaults: fields that were added later, if digests are made of the content, or all
fields, if each record only has few of many facts. A field that is left out is read as its default.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any, ClassVar, Never, TypeVar, dataclass_transform

_T = TypeVar("_T", bound="Record")

EVERY_FIELD = ("*",)


class Record:
    """The methods of all records: construction, equality, a readable form; no attribute can be set."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]
    __match_args__: ClassVar[tuple[str, ...]]
    _blank: ClassVar[dict[str, Any]]
    """Every field's default, in order; the field object itself if a value must be given or is made by a factory."""
    _made: ClassVar[dict[str, dataclasses.Field[Any]]]
    """The fields without a plain default."""
    _held: ClassVar[dict[str, Any]]
    """The part of ``_blank`` that every record holds."""
    _omitted: ClassVar[Collection[str]] = ()
    """Fields that are left out while they have their plain defaults; :data:`EVERY_FIELD` stands for all."""

    def __init__(self, *positional: Any, **named: Any) -> None:
        cls = type(self)
        blank = cls._blank
        if positional:
            given = dict(zip(cls.__match_args__, positional, strict=False))
            if len(positional) > len(given) or named.keys() & given.keys():
                raise TypeError(f"{cls.__name__} has the fields {', '.join(cls.__match_args__)}")
            named = given | named
        if not named.keys() <= blank.keys():
            raise TypeError(f"{cls.__name__} has the fields {', '.join(cls.__match_args__)}")
        values = cls._held | named
        if len(named) < len(blank):
            for name, field in cls._made.items():
                if values[name] is field:
                    values[name] = self._make_value(field)
        if cls._omitted:
            for name in named.keys() & cls._omitted:
                if named[name] == blank[name]:
                    del values[name]
        vars(self).update(values)

    def _make_value(self, field: dataclasses.Field[Any]) -> Any:
        if field.default_factory is not dataclasses.MISSING:
            return field.default_factory()
        raise TypeError(f"{type(self).__name__} needs the field {field.name}")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        # A record that was decoded from a map may lack fields with default values, and has the map's order.
        return vars(self) == vars(other) or self._list_values() == other._list_values()

    def __hash__(self) -> int:
        return hash((type(self), *self._list_values()))

    def _list_values(self) -> list[Any]:
        return [getattr(self, name) for name in self._blank]

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({values})"

    def __setattr__(self, name: str, value: object) -> Never:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> Never:
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def record(cls: type[_T]) -> type[_T]:
    """Make a subclass of :class:`Record` a dataclass with the methods of its base."""
    made = dataclasses.dataclass(init=False, repr=False, eq=False)(cls)
    fields = dataclasses.fields(made)
    made._made = {field.name: field for field in fields if field.default is dataclasses.MISSING}
    made._blank = {field.name: made._made.get(field.name, field.default) for field in fields}
    if made._omitted == EVERY_FIELD:
        made._omitted = made._blank.keys() - made._made.keys()
    made._held = {name: default for name, default in made._blank.items() if name not in made._omitted}
    return made
