"""Kernel files for T1 files, the autotuning community's format: two lines that name the T1 file."""

from __future__ import annotations

import re
from pathlib import Path

from ktuned.model import UsageError

_TEXT = '''"""The kernel of {name}. Replace the call by a @kernel of your own when you outgrow the T1 file."""

from ktuned_nvrtc import t1

t1.declare({name!r})
'''


def is_t1(path: Path) -> bool:
    """Return whether a path is meant as a T1 file."""
    return path.suffix == ".json" and path.is_file()


def write_kernel_file(path: Path) -> tuple[Path, bool]:
    """Return the kernel file that declares the kernel of a T1 file, beside it, and whether it was written now.

    Raises:
        UsageError: the file's name is taken by another kernel file, or it cannot be written.
    """
    stem = re.sub(r"\W+", "_", re.sub(r"(?i)(\.t1)?\.json$", "", path.name)).strip("_") or "t1"
    place = path.with_name(f"tune_{stem}.py")
    text = _TEXT.format(name=path.name)
    try:
        if place.exists():
            if f"t1.declare({path.name!r})" in place.read_text(encoding="utf-8", errors="replace"):
                return place, False
            raise UsageError(
                f"{place} is another kernel file", hint=f"rename it, or add `t1.declare({path.name!r})` to it"
            )
        place.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{place} cannot be written: {error.strerror}", hint="copy the T1 file and its sources to a place of yours"
        ) from None
    return place, True
