"""A list that is filtered and sorted, with one entry chosen. No IO.

A module of its own: the list of kernels and that of configs are both such lists.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Choice:
    """The words that entries must have, the place of their order among a list's, and the entry that keys act on."""

    query: str = ""
    order: int = 0
    is_reversed: bool = False
    chosen: Hashable | None = None


@dataclass(frozen=True, slots=True)
class Listed(Generic[Item]):
    """The manner of listing entries of one kind: their identity, the words that a filter searches, and their orders.

    ``orders`` are sort keys by name; entries without a value there return ``None``, and come last either way.
    """

    identity: Callable[[Item], Hashable]
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

    def chosen_place(self, shown: Sequence[Item], choice: Choice) -> int | None:
        """Return the place of the entry that keys act on: the first one unless another is chosen and shown."""
        places = (place for place, item in enumerate(shown) if self.identity(item) == choice.chosen)
        return next(places, 0 if shown else None)

    def move_choice(self, shown: Sequence[Item], choice: Choice, step: int) -> Choice:
        """Return the choice of the entry that is ``step`` places below, or above."""
        place = self.chosen_place(shown, choice)
        if place is None:
            return choice
        return replace(choice, chosen=self.identity(shown[max(0, min(place + step, len(shown) - 1))]))


def _has_words(words: str, query: str) -> bool:
    lower = words.lower()
    return all(word in lower for word in query.lower().split())
