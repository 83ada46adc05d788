"""What a worker says of an exception that user code, a compiler or a driver raised."""

from __future__ import annotations

import traceback
from typing import Any

from ktuned.model import KernelFileError, KtunedError

_TRACE_CHARS = 8_000
_MESSAGE_CHARS = 8_000
"""What a compiler's first errors need; an exception's text can be as long as whoever raised it likes."""


def words(error: BaseException) -> str:
    """Return an exception's type and text: of bounded length, Unicode, whatever its ``__str__`` does."""
    try:
        # A KeyError's text is the repr of what it was made of, which reads badly where that is a sentence.
        is_sentence = type(error) is KeyError and len(error.args) == 1 and " " in str(error.args[0])
        text = str(error.args[0] if is_sentence else error)
    except Exception as second:
        text = f"(its text cannot be had: {type(second).__name__})"
    name = type(error).__name__
    return _clean(f"{name}: {text}" if text else name)[:_MESSAGE_CHARS]


def describe_failure(error: BaseException) -> dict[str, Any]:
    """Return what the daemon keeps of an exception: code, one line, hint, place, traceback (capped)."""
    trace = _clean("".join(traceback.format_exception(error)))[-_TRACE_CHARS:]
    if isinstance(error, KtunedError):
        failure: dict[str, Any] = {**error.to_wire(), "trace": trace}
        if isinstance(error, KernelFileError):
            failure |= {"path": error.path, "line": error.line}
        return failure
    failure = {"code": "raised", "message": words(error), "hint": "", "trace": trace}
    return failure | ({"errno": error.errno} if isinstance(error, OSError) else {})


def _clean(text: str) -> str:
    """Return the text as Unicode that can be sent: a lone surrogate of a file's name is written as an escape."""
    return text.encode(errors="backslashreplace").decode()
