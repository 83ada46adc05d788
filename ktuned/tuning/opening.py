"""Opening of a job: the configs that lookups were answered with so far are tried before anything becomes the winner.

Otherwise the first measured config, whichever it is, would take the place of a better answer: the winner of a near
problem, the declared default, the winner from before an edit. Decides; no IO.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ktuned.model import Config, canonical


class Opening:
    """The served configs that have no outcome here yet; over once each has one."""

    def __init__(self, served: Iterable[Config], has_ended: Callable[[Config], bool] = lambda config: False) -> None:
        self.served = tuple({canonical(config): config for config in served}.values())
        self._open = {canonical(config) for config in self.served if not has_ended(config)}

    @property
    def is_over(self) -> bool:
        """True when every served config has an outcome in this context."""
        return not self._open

    def end(self, config: Config) -> bool:
        """Note that a config has an outcome; return whether that was the last one that the opening waited for."""
        was_open = not self.is_over
        self._open.discard(canonical(config))
        return was_open and self.is_over


def served_configs(
    incumbent: Config | None, near: Iterable[Config], default: Config | None, admits: Callable[[Config], bool]
) -> list[Config]:
    """Return the configs that lookups are answered with while a context has no winner.

    ``incumbent`` is the winner from before a change, ``near`` are those of near problems, the nearest first.
    """
    if incumbent is not None and admits(incumbent):
        return [incumbent]
    nearest = next(filter(admits, near), None)
    return [config for config in (nearest, default) if config is not None and admits(config)]
