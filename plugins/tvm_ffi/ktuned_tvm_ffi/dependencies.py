"""Files that a compile was made of, as its compiler lists them: they are copied beside the library."""

from __future__ import annotations

import os
import re
from pathlib import Path


def prerequisites(rule: str, base: Path) -> list[Path]:
    r"""Return a make rule's files: ``target: file file``, a ``\`` before line ends and blanks, ``$$`` for ``$``."""
    _, _, files = rule.replace("\\\n", " ").partition(": ")
    names = re.findall(r"(?:\\.|[^\s\\])+", files.partition("\n")[0])
    return [Path(os.path.normpath(base / re.sub(r"\\(.)", r"\1", name).replace("$$", "$"))) for name in names]
