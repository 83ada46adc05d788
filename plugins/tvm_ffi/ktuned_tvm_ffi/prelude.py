"""Precompiles tvm-ffi's headers, which take two thirds of a small kernel's compile time.

Each set of flags needs its own precompiled header of some 70 MB, so the cache keeps only the :data:`MAX_PRECOMPILED`
most recently used. This is done only for GCC: GCC checks a precompiled header before use and reads the
headers' text if it does not match, so a wrong one costs time but never gives a wrong kernel.
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

from ktuned_tvm_ffi.compiler import CompileError, Compiler

MAX_PRECOMPILED = 4
"""Most precompiled headers that are kept: one job rarely uses more sets of flags at a time."""

ABANDONED_AFTER_S = 600.0
"""Age after which an unfinished header is taken for abandoned: making one takes seconds."""

PRELUDE = "prelude.hpp"
_PRECOMPILED = f"{PRELUDE}.gch"
_IRRELEVANT = ("-l", "-L", "-Wl,", "-I")
"""Flags that do not affect tvm-ffi's headers, so that their variants share one precompiled header."""

_HEADERS = ("tvm/ffi/container/tensor.h", "tvm/ffi/error.h", "tvm/ffi/function.h")


def find_or_make_prelude(compiler: Compiler, flags: Sequence[str]) -> Path | None:
    """Return the header to ``-include`` first; its precompiled form lies beside it. Both are made if they are missing.

    ``None`` if the compiler is not GCC, if the header does not compile, or if there is no private directory for it.
    """
    if not compiler.is_gcc or any(flag.startswith(("-include", "-imacros", "@")) for flag in flags):
        # These are included before the headers and may change them.
        return None
    flags = [flag for flag in flags if not flag.startswith(_IRRELEVANT)]
    try:
        cache = _open_cache_directory()
        prelude = cache / _make_key(compiler, flags) / PRELUDE
        if not prelude.with_name(_PRECOMPILED).exists():
            _make_prelude(compiler, flags, prelude)
            _evict_preludes(cache, keep=prelude.parent)
        os.utime(prelude.with_name(_PRECOMPILED))
    except (OSError, CompileError):
        return None
    return prelude


def _open_cache_directory() -> Path:
    """Return the directory of all precompiled headers: below ``$KTUNED_CACHE``, else a private one in TMPDIR.

    Raises:
        OSError: it cannot be made, or other users may write there: their headers would be compiled.
    """
    cache = os.environ.get("KTUNED_CACHE")
    directory = Path(cache, "tvm_ffi") if cache else Path(tempfile.gettempdir(), f"ktuned-tvm-ffi-{os.getuid()}")
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(f"{directory} is not a directory that only this user can write")
    return directory


def _make_key(compiler: Compiler, flags: Sequence[str]) -> str:
    parts = [*compiler.command, compiler.version, *flags, *compiler.include_flags(), version("apache-tvm-ffi")]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def _make_prelude(compiler: Compiler, flags: Sequence[str], prelude: Path) -> None:
    """Precompile beside the final path and rename, so that concurrent processes each find a complete one."""
    making = Path(tempfile.mkdtemp(prefix="making-", dir=prelude.parent.parent))
    try:
        text = making / PRELUDE
        # The #line name must not be that of a temporary file: a compiler that quotes a line opens the file later, too.
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
        compiler.run_command(command, making)
        prelude.parent.mkdir(exist_ok=True)
        # The text stays when its precompiled form is evicted, for a compiler that is just starting.
        text.replace(prelude)
        header.replace(prelude.with_name(_PRECOMPILED))
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _evict_preludes(cache: Path, *, keep: Path) -> None:
    """Remove all headers except the most recently used, and unfinished headers of killed processes."""
    with contextlib.suppress(OSError):
        headers = sorted(cache.glob(f"*/{_PRECOMPILED}"), key=lambda path: path.stat().st_mtime, reverse=True)
        finished = [path for path in headers if not path.parent.name.startswith("making-")]
        for path in finished[MAX_PRECOMPILED:]:
            if path.parent != keep:
                path.unlink(missing_ok=True)
        for path in cache.glob("making-*"):
            if time.time() - path.stat().st_mtime > ABANDONED_AFTER_S:
                shutil.rmtree(path, ignore_errors=True)
