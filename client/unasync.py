"""Generates the client for threads, ``client.py``, from the client for asyncio, ``aio.py``.

``python client/unasync.py`` writes the file.
"""

import io
import subprocess
import sys
import tokenize
from pathlib import Path

PACKAGE = Path(__file__).parent / "ktuned_client"
SOURCE = PACKAGE / "aio.py"
MADE = PACKAGE / "client.py"

NAMES = {
    "AsyncClient": "Client",
    "AsyncEventStream": "EventStream",
    "AsyncIterator": "Iterator",
    "AsyncSubscription": "Subscription",
    "AsyncTransport": "Transport",
    "AsyncTuning": "Tuning",
    "StopAsyncIteration": "StopIteration",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__anext__": "__next__",
    "aclose": "close",
    "transport_aio": "transport",
    "anext": "next",
}
"""Names and their replacements. ``async``, ``await`` and ``Awaitable[…]`` around a type are removed as well."""

TEXTS = {
    '"""Client for asyncio (and anyio on it); ``client.py``, for threads, is generated from this file."""': (
        '"""Client for threads. Generated from ``aio.py`` by ``client/unasync.py``: change that file."""'
    ),
    "All tasks of a loop share a connection, made when it is first needed. "
    "Another loop, and thus a forked child, gets\n    one of its own.": (
        "Threads may share a client; a forked child gets connections of its own. "
        "Lookups share one, made when it is first\n    needed; every other request has its own."
    ),
    "``aclose``": "``close``",
}


def derive_client(source: str) -> str:
    """Return the source of the client for threads."""
    for text, replacement in TEXTS.items():
        if text not in source:
            raise ValueError(f"{SOURCE.name} no longer contains {text!r}")
        source = source.replace(text, replacement)
    source = source.replace("Awaitable[Hit]", "Hit").replace(
        "AsyncIterator, Awaitable, Callable, Iterable, Mapping", "Callable, Iterable, Iterator, Mapping"
    )
    lines = source.splitlines(keepends=True)
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    # Replace from the end, so that the columns of earlier tokens stay valid.
    for token in reversed(tokens):
        if token.type != tokenize.NAME:
            continue
        (row, start), (_, end) = token.start, token.end
        line = lines[row - 1]
        if token.string in ("async", "await"):
            lines[row - 1] = line[:start] + line[end:].removeprefix(" ")
        elif token.string in NAMES:
            lines[row - 1] = line[:start] + NAMES[token.string] + line[end:]
    # Lines have become shorter, so some statements now fit on one line.
    formatter = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(MADE), "-"]
    return subprocess.run(formatter, input="".join(lines), text=True, capture_output=True, check=True).stdout


if __name__ == "__main__":
    MADE.write_text(derive_client(SOURCE.read_text()))
