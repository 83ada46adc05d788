"""The report as one HTML file with document, program, style and charting library in it; it loads nothing else.

Names and messages cannot become code: the document is JSON that cannot close its script element, and the program makes
only text nodes of it. The page's policy admits only its own two scripts, by their digests, so that even after a mistake
nothing else runs or is loaded.
"""

from __future__ import annotations

import base64
import hashlib
import html
import zlib
from functools import cache
from importlib.resources import files
from string import Template
from typing import Any

import msgspec

from ktuned.model import escape_controls
from ktuned.report.document import Document

LIBRARY = "echarts.min.js"
"""Apache ECharts as its package has it; see ``assets/SOURCES.md``."""

_PROGRAM = ("data.js", "model.js", "charts.js", "page.js")

FRAME_HEIGHT = 900
"""Height in pixels of the report in a notebook's cell; the page scrolls within it."""


def render_page(document: Document) -> str:
    """Return the report as HTML."""
    program = "".join(_read_asset(name) for name in _PROGRAM)
    scripts = " ".join(f"'sha256-{_digest_text(text)}'" for text in (program, _read_asset(LIBRARY)))
    policy = [
        "default-src 'none'",
        f"script-src {scripts}",
        # The charting library positions its tooltips by style attributes.
        "style-src 'unsafe-inline'",
        "img-src data:",
        "connect-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return Template(_read_asset("report.html")).substitute(
        policy="; ".join(policy),
        style=_read_asset("report.css"),
        document=encode_document(document),
        library=_read_library(),
        program=program,
    )


def render_fragment(document: Document, height: int = FRAME_HEIGHT) -> str:
    """Return the report as HTML for a notebook's cell: a separate frame that shares nothing with the notebook."""
    text = html.escape(render_page(document), quote=True)
    style = f"width: 100%; height: {height}px; border: 0"
    return f'<iframe sandbox="allow-scripts" referrerpolicy="no-referrer" style="{style}" srcdoc="{text}"></iframe>'


def encode_document(document: Document) -> str:
    """Return a document as JSON without ``<``, so that it can stand in a script element.

    Control characters and marks of text direction in its strings are shown as escapes, because a page would obey the
    marks.
    """
    shown = _escape_controls(msgspec.to_builtins(document))
    return msgspec.json.encode(shown).decode().replace("<", "\\u003c")


def _escape_controls(value: Any) -> Any:
    if isinstance(value, str):
        return escape_controls(value)
    if isinstance(value, dict):
        return {_escape_controls(key): _escape_controls(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_escape_controls(item) for item in value]
    return value


@cache
def _read_asset(name: str) -> str:
    return (files("ktuned.report") / "assets" / name).read_text("utf-8")


@cache
def _read_library() -> str:
    return base64.b64encode(zlib.compress(_read_asset(LIBRARY).encode(), 9)).decode("ascii")


def _digest_text(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
