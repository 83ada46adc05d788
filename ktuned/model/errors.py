"""Every error that ktuned raises on purpose.

Each message states what is wrong with which thing, and ``hint`` gives the remedy. The protocol carries ``code``, so
that programs need not read the message.
"""

from __future__ import annotations

from collections.abc import Iterable

TOML_HINT = "correct it: in TOML strings have quotes, and true and false are in small letters"


class KtunedError(Exception):
    """Base of all errors: one sentence for a person, a code for a program, and a hint with the remedy."""

    code = "error"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if hint:
            # Tracebacks show notes, and programs that call ktuned.tune print no hints themselves.
            self.add_note(hint)

    def to_wire(self) -> dict[str, str]:
        """Return the error map of the protocol: ``code``, ``message``, ``hint``."""
        return {"code": self.code, "message": self.message, "hint": self.hint}


class UsageError(KtunedError):
    """The request is invalid: a bad argument, a bad field, a bad name."""

    code = "usage"


class NotFound(KtunedError):
    """The named kernel, job, trial, device or file is unknown."""

    code = "not_found"


class AmbiguousName(KtunedError):
    """Several projects have a kernel with this short name; the message lists the full names."""

    code = "ambiguous"


class SettingsError(KtunedError):
    """``config.toml`` or the environment has an error."""

    code = "settings"


class KernelFileError(KtunedError):
    """A kernel file has an error; the message starts with ``file:line``.

    ``path`` and ``line`` (from 1, or 0 if unknown) are its place. A syntax error has an ``excerpt``: the line of source
    with a caret below it.
    """

    code = "kernel_file"

    def __init__(self, message: str, *, path: str = "", line: int = 0, hint: str = "", excerpt: str = "") -> None:
        super().__init__(message, hint=hint)
        self.path = path
        self.line = line
        self.excerpt = excerpt


class BackendError(KtunedError):
    """A backend is unknown, cannot be imported, or speaks another API version."""

    code = "backend"


class Unsupported(KtunedError):
    """This config cannot run on this device; raised by kernel functions and backends."""

    code = "unsupported"


class StoreError(KtunedError):
    """The store cannot be opened or written: no space, read-only, no locks, newer schema, damage."""

    code = "store"


class StoreDamaged(StoreError):
    """The store is damaged; the next opening moves it aside."""


class WorkerError(KtunedError):
    """Base of failures of a request to a worker process."""

    code = "worker"


class IllegalMove(KtunedError):
    """An event is illegal in the state of a trial or a job, which stays in that state."""

    code = "illegal_move"


def listed(known: Iterable[str], *, near: str = "") -> str:
    """Return ``(there are: …)``. The known name closest to ``near`` comes first, because a long list may be cut."""
    names = list(known)
    text = f"there are: {', '.join(names) or 'none'}"
    meant = suggest_name(near, names)
    return f"({meant} {text})" if meant else f"({text})"


def suggest_name(name: str, known: Iterable[str]) -> str:
    """Return ``did you mean …?`` with the known name that is closest to ``name``; empty if none is close."""
    import difflib

    close = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else ""


def find_first_error(error: BaseException) -> BaseException:
    """Return the exception itself; of a group its first :class:`KtunedError`, or else its first exception."""
    while isinstance(error, BaseExceptionGroup):
        known = error.subgroup(KtunedError)
        error = (known or error).exceptions[0]
    return error


_MESSAGE_CHARS = 8_000
"""Most characters of an exception's text that are kept: enough for a compiler's first errors."""


def describe_error(error: BaseException) -> str:
    """Return an exception's type and text on as many lines as it has, capped.

    Nothing is assumed about the exception: its ``__str__`` may raise, and its text may be of any length or no Unicode.
    """
    try:
        # A KeyError's text is the repr of its argument, which would show a sentence in quotes.
        is_sentence = type(error) is KeyError and len(error.args) == 1 and " " in str(error.args[0])
        text = str(error.args[0] if is_sentence else error)
    except Exception as second:
        text = f"(its text cannot be read: {type(second).__name__})"
    name = type(error).__name__
    return escape_surrogates(f"{name}: {text}" if text else name)[:_MESSAGE_CHARS]


def escape_surrogates(text: str) -> str:
    """Return text that can be sent: lone surrogates, as in odd file names, become escapes."""
    return text.encode(errors="backslashreplace").decode()
