"""Text from files and programs: whatever it holds, it cannot control a terminal or reorder a line."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from ktuned.model import escape_controls, escape_controls_in_json

CHARACTERS = st.characters() | st.sampled_from("\x1b\x07\x9b\u202e\u2066\u200b\ufeff\r\x00")
TEXTS = st.text(CHARACTERS)


def is_harmless(text: str) -> bool:
    """Return whether a text has only printable characters, tabs, line ends and spaces."""
    return all(letter.isprintable() or letter in "\n\t" or letter.isspace() for letter in text) and "\r" not in text


@given(TEXTS)
def test_shown_text_is_printable_and_encodable(text: str) -> None:
    """This includes lone surrogates; harmless text stays as it is."""
    shown = escape_controls(text)
    assert is_harmless(shown)
    shown.encode()
    assert escape_controls("é 漢字\n\t½ №") == "é 漢字\n\t½ №"


@given(st.recursive(TEXTS | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner)))
def test_json_keeps_its_value(value: object) -> None:
    """The escapes are JSON's own."""
    shown = escape_controls_in_json(json.dumps(value, ensure_ascii=False))
    assert is_harmless(shown)
    assert json.loads(shown) == value


def test_escapes_are_those_of_python() -> None:
    """So they can be read and pasted into a literal."""
    assert escape_controls("a\x1b[31mb\u202ec\x07\udcff\U000e0041") == r"a\x1b[31mb\u202ec\x07\udcff\U000e0041"
