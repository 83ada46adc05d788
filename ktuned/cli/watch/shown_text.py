"""Texts of the live screen."""

from __future__ import annotations

from typing import Any, Self

from rich.text import Text

from ktuned.model import show_controls


class ShownText(Text):
    """A text whose control characters are shown as escapes, as in all output: names and messages come from anywhere."""

    def __init__(self, text: str = "", *arguments: Any, **options: Any) -> None:
        super().__init__(show_controls(text), *arguments, **options)

    def append(self, text: Text | str, style: Any = None) -> Self:
        """Add a text at the end."""
        super().append(show_controls(text) if isinstance(text, str) else text, style)
        return self
