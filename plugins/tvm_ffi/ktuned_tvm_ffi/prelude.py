"""Precompiled headers of tvm-ffi, which are two thirds of a small kernel's compile time.

Each set of flags needs a precompiled header of its own, some 70 MB large, so the cache keeps only the
:data:`MAX_PRECOMPILED` last used. Only for GCC: it checks each one before use and reads the headers' text instead
if it does not match, so a wrong one costs time but never gives a wrong kernel.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from ktuned_tvm_ffi.compiler import Compiler, Refused

MAX_PRECOMPILED = 4
"""Precompiled headers that are kept: one job rarely uses more sets of flags at a time."""

ABANDONED_AFTER_S = 600.0
"""Age after which an unfinished one is abandoned: making one takes seconds."""

PRELUDE = "prelude.hpp"
_PRECOMPILED = f"{PRELUDE}.gch"
_IRRELEVANT = ("-l", "-L", "-Wl,", "-I")
"""Flags that do not affect tvm-ffi's headers, so that their variants share one precompiled header."""

_HEADERS = ("tvm/ffi/container/tensor.h", "tvm/ffi/error.h", "tvm/ffi/function.h")


def precompiled(compiler: Compiler, flags: Sequence[str]) -> Path | None:
    """Return the header to ``-include`` first, with its precompiled form beside it; make both if they are missing.

    ``None`` if this compiler has none, it does not compile, or there is no private directory for it.
    """
    if not compiler.is_gcc or any(flag.startswith(("-include", "-imacros", "@")) for flag in flags):
        # What comes before the headers may change them.
        return None
    flags = [flag for flag in flags if not flag.startswith(_IRRELEVANT)]
    try:
        cache = _cache_directory()
        prelude = cache / _key(compiler, flags) / PRELUDE
        if not prelude.with_name(_PRECOMPILED).exists():
            _make(compiler, flags, prelude)
            _evict(cache, keep=prelude.parent)
        os.utime(prelude.with_name(_PRECOMPILED))
    except (OSError, Refused):
        return None
    return prelude


def _cache_directory() -> Path:
    """Return the directory of all precompiled headers: below ``$KTUNED_CACHE``, else a private one in TMPDIR.

    Raises:
        OSError: it cannot be made, or others may write there, whose headers would be compiled.
    """
    cache = os.environ.get("KTUNED_CACHE")
    directory = Path(cache, "tvm_ffi") if cache else Path(tempfile.gettempdir(), f"ktuned-tvm-ffi-{os.getuid()}")
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(f"{directory} is not a directory that only this user can write")
    return directory


def _key(compiler: Compiler, flags: Sequence[str]) -> str:
    parts = [*compiler.command, compiler.version, *flags, *compiler.include_flags(), version("apache-tvm-ffi")]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def _make(compiler: Compiler, flags: Sequence[str], prelude: Path) -> None:
    """Precompile beside the final path and rename, so that concurrent processes each find a complete one."""
    making = Path(tempfile.mkdtemp(prefix="making-", dir=prelude.parent.parent))
    try:
        text = making / PRELUDE
        # Its name is that of no file that comes and goes: a compiler that quotes a line asks for it for ever after.
        name = Path(__file__).with_name(PRELUDE)
        text.write_text(f'#line 1 "{name}"\n' + "".join(f"#include <{header}>\n" for header in _HEADERS))
        header = making / _PRECOMPILED
        command = (
            *compiler.command,
            *flags,
            *compiler.include_flags(),
            "-x",
            "c++-header",
            str(text),
            "-o",
            str(header),
        )
        compiler.run(command, making)
        prelude.parent.mkdir(exist_ok=True)
        # The text stays when its precompiled form is evicted: a compiler that is starting reads it instead.
        text.replace(prelude)
        header.replace(prelude.with_name(_PRECOMPILED))
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _evict(cache: Path, *, keep: Path) -> None:
    """Remove all but the last used, and the unfinished ones of killed processes."""
    with contextlib.suppress(OSError):
        headers = sorted(cache.glob(f"*/{_PRECOMPILED}"), key=lambda path: path.stat().st_mtime, reverse=True)
        finished = [path for path in headers if not path.parent.name.startswith("making-")]
        for path in finished[MAX_PRECOMPILED:]:
            if path.parent != keep:
                path.unlink(missing_ok=True)
        for path in cache.glob("making-*"):
            if time.time() - path.stat().st_mtime > ABANDONED_AFTER_S:
                shutil.rmtree(path, ignore_errors=True)
