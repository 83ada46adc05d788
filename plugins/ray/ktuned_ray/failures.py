"""Ray's errors as one line each, with what the user can do."""

from __future__ import annotations

import ray.exceptions


def describe_error(error: BaseException) -> str:
    """Return an error as one line, with what the user can do."""
    hint = _find_hint(error)
    return f"{_format_error(error)} ({hint})" if hint else _format_error(error)


def _format_error(error: BaseException) -> str:
    """Return an error as one line: the last line of Ray's text, which has the cause."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, Exception):
        error = cause
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, ray.exceptions.ActorDiedError):
        reasons = [line for line in lines if "dead because" in line or "killed" in line or "node" in line.lower()]
        return f"its actor died: {(reasons or lines)[-1][:300]}"
    return f"{type(error).__name__}: {lines[-1][:300] if lines else ''}"


def _find_hint(error: BaseException) -> str:
    """Return what the user can do about an error; empty if that is not known."""
    text = str(error)
    if "ersion mismatch" in text or ("differ" in text and "version" in text):
        return "give [cluster] python an interpreter with the cluster's versions of Ray and Python"
    if "No module named 'ktuned" in text:
        return "install ktuned-ray on every node, or bring it by [cluster] runtime_env"
    if "uthentication" in text or "oken" in text:
        return f"give the daemon {_TOKEN}"
    if "Failed to connect to Ray cluster" in text:
        # Ray's message is the same when a token is missing or wrong.
        return f"is it up? If it wants a token, give the daemon {_TOKEN}"
    return ""


_TOKEN = "the cluster's token: RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or ~/.ray/auth_token"
