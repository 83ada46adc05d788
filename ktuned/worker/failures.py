"""Exceptions of user code, compilers and drivers, as data that a worker can send.

Nothing is assumed about an exception: its ``__str__`` may raise, and its text may be of any length or no Unicode.
"""

from __future__ import annotations

import traceback

from ktuned.ipc import replies
from ktuned.model import KernelFileError, KtunedError
from ktuned.worker.trace import SourceChanged

_TRACE_CHARS = 8_000
_MESSAGE_CHARS = 8_000
"""Enough for a compiler's first errors."""


def describe_error(error: BaseException) -> str:
    """Return an exception's type and text on as many lines as it has, capped."""
    try:
        # A KeyError's text is the repr of its argument, which would show a sentence in quotes.
        is_sentence = type(error) is KeyError and len(error.args) == 1 and " " in str(error.args[0])
        text = str(error.args[0] if is_sentence else error)
    except Exception as second:
        text = f"(its text cannot be had: {type(second).__name__})"
    name = type(error).__name__
    return _escape_surrogates(f"{name}: {text}" if text else name)[:_MESSAGE_CHARS]


def describe_failure(error: BaseException) -> replies.Failure:
    """Return an exception's code, message, hint, place and traceback, each capped."""
    trace = _escape_surrogates("".join(traceback.format_exception(error)))[-_TRACE_CHARS:]
    if isinstance(error, KernelFileError):
        return replies.Failure(error.code, error.message, error.hint, trace, path=error.path, line=error.line)
    if isinstance(error, SourceChanged):
        return replies.Failure(error.code, error.message, error.hint, trace, observed=error.observed)
    if isinstance(error, KtunedError):
        return replies.Failure(error.code, error.message, error.hint, trace)
    errno = error.errno if isinstance(error, OSError) else None
    return replies.Failure("raised", describe_error(error), "", trace, errno)


def _escape_surrogates(text: str) -> str:
    """Return text that can be sent: lone surrogates, as in odd file names, become escapes."""
    return text.encode(errors="backslashreplace").decode()
