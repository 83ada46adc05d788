"""Filtering and sorting of a list: of the kernels', and of the configs'. No IO."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from ktuned.model import FrozenStruct

Item = TypeVar("Item")


class Choice(FrozenStruct):
    """The user's choice for a list: the words that its entries must contain, and the index of their order."""

    query: str = ""
    order: int = 0
    is_reversed: bool = False


class Listed(FrozenStruct, Generic[Item]):
    """How entries of one kind are listed: ``words`` returns the text that a filter searches.

    ``orders`` has sort keys by name. A key returns ``None`` for an entry without a value; such an entry comes last in
    both directions.
    """

    words: Callable[[Item], str]
    orders: Mapping[str, Callable[[Item], Any]]

    def order_name(self, choice: Choice) -> str:
        """Return the name of the chosen order."""
        return tuple(self.orders)[choice.order % len(self.orders)]

    def filter_items(self, items: Iterable[Item], choice: Choice) -> list[Item]:
        """Return the entries that have all words of the filter, in order."""
        found = [item for item in items if _has_words(self.words(item), choice.query)]
        value = self.orders[self.order_name(choice)]
        known = [item for item in found if value(item) is not None]
        unknown = [item for item in found if value(item) is None]
        return sorted(known, key=value, reverse=choice.is_reversed) + unknown


def _has_words(words: str, query: str) -> bool:
    lower = words.lower()
    return all(word in lower for word in query.lower().split())
