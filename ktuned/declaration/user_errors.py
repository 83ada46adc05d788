"""Errors of user code that was run by a library, such as a plugin's compiler: their causes, and the user's line."""

from __future__ import annotations

import traceback
from collections.abc import Container, Iterator
from pathlib import Path

from ktuned.dependencies import is_ours


def iterate_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, its cause, the cause of that, and so on; each once, because a chain may be a circle."""
    following: BaseException | None = error
    seen: set[int] = set()
    while following is not None and id(following) not in seen:
        yield following
        seen.add(id(following))
        following = following.__cause__ or following.__context__


def locate_user_line(error: BaseException, libraries: Container[str]) -> str:
    """Return ``file:line: `` of the innermost frame that is the user's, or ``""``.

    Frames of ktuned, of its plugins and of the top-level packages in ``libraries`` are not the user's.
    """
    found = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        module, path = str(frame.f_globals.get("__name__", "")), Path(frame.f_code.co_filename)
        if not (is_ours(module) or module.partition(".")[0] in libraries) and path.is_file():
            found = f"{path.name}:{line}: "
    return found
