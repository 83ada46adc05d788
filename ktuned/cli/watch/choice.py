"""A list that is filtered and sorted: that of kernels and that of configs. No IO."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Choice:
    """What a list shows: the words that entries must have, and the place of their order among the list's."""

    query: str = ""
    order: int = 0
    is_reversed: bool = False


@dataclass(frozen=True, slots=True)
class Listed(Generic[Item]):
    """The manner of listing entries of one kind: the words that a filter searches, and their orders.

    ``orders`` are sort keys by name; entries without a value there return ``None``, and come last either way.
    """

    words: Callable[[Item], str]
    orders: Mapping[str, Callable[[Item], Any]]

    def order_name(self, choice: Choice) -> str:
        """Return the name of the order."""
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
