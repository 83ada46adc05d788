"""Text of files and programs, made safe to show: characters that control a terminal or reorder a line are escaped.

A kernel's name, a config's value, a path and a compiler's message are other people's text. Printed unchanged, it could
clear the screen, set the window's title, or reverse a line, so that it reads differently. So each character that
Unicode does not count as printable (controls, marks of direction, characters without a width, lone surrogates) is shown
as Python's escape. Only tabs, line ends and spaces of any width remain.
"""

from __future__ import annotations

import unicodedata

_KEPT = frozenset("\n\t")


def escape_controls(text: str) -> str:
    r"""Return a text with escapes for such characters: ``\x1b``, ``\u202e``."""
    return text if text.isprintable() else "".join(map(_escape_letter, text))


def escape_controls_in_json(text: str) -> str:
    """Return JSON of the same value, with JSON's own escapes for such characters."""
    if text.isprintable():
        return text
    return "".join(letter if _is_shown(letter) else _escape_for_json(letter) for letter in text)


def _is_shown(letter: str) -> bool:
    return letter.isprintable() or letter in _KEPT or unicodedata.category(letter) == "Zs"


def _escape_letter(letter: str) -> str:
    if _is_shown(letter):
        return letter
    code = ord(letter)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _escape_for_json(letter: str) -> str:
    units = letter.encode("utf-16-be", errors="surrogatepass")
    return "".join(f"\\u{units[place]:02x}{units[place + 1]:02x}" for place in range(0, len(units), 2))
