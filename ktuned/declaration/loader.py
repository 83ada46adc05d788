"""Loading a kernel file: from its path to the kernels that it declares, and the errors in it.

Loading executes user code. So it happens in workers, and in an application that has the kernels in its own files.

- A file is loaded afresh each time: the modules of the last one are dropped (:mod:`ktuned.dependencies.code_observer`).
- A kernel that is declared wrongly gives one error, and the file's other kernels can be used. A file whose import fails
  has no kernels.
- An error may be due to something that this process loaded before, such as a native module that cannot be dropped. So a
  worker that has loaded a file before starts again as a fresh process, unless the error would be the same there.
- The import ends early at the file's first call of ``ktuned.tune``: the rest only concerns the program.
"""

from __future__ import annotations

import hashlib
import re
import sys
import traceback
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType

from ktuned.backends import find_extra, install_hint
from ktuned.declaration.declaration import DeclarationCollector, EndOfDeclarations, collect_declarations
from ktuned.declaration.declared_kernel import Kernel
from ktuned.declaration.user_values import fold_to_line
from ktuned.dependencies import ACCESSES, OBSERVER, FreshProcessNeeded, ImportEnd, is_ours
from ktuned.ipc import ABSENT, NotRegularFile, Untrusted, normalize_path, read_regular_file, stamps_agree
from ktuned.model import FrozenStruct, KernelFileError, listed

_DISTRIBUTION_OF_PACKAGE = {
    "cutlass": "nvidia-cutlass-dsl",
    "numpy": "numpy",
    "tilelang": "tilelang",
    "torch": "torch",
    "triton": "triton",
    "tvm_ffi": "apache-tvm-ffi",
}
"""The names for pip of the packages that kernel files import most."""

MAX_EXCERPT_CHARS = 200
"""The longest line of source that an error shows: below a line that wraps, the caret would be misplaced."""

_LASTING_ERRORS = (SyntaxError, ModuleNotFoundError, FileNotFoundError, KernelFileError, Untrusted)
"""Errors that a fresh process would meet, too."""

_KERNEL_MODULE = re.compile(r"_ktuned_[0-9a-f]{8}_")


class LoadedFile(FrozenStruct):
    """The kernels that one kernel file declares, and its errors.

    ``files`` are the files that took part and count by their content, with the digests of the bytes that were compiled.
    They are known after a failed load, too, because a change to one of them may fix it.
    """

    path: Path
    kernels: tuple[Kernel, ...]
    errors: tuple[KernelFileError, ...]
    files: Mapping[Path, str]


_last_loaded: LoadedFile | None = None


def load_file(path: Path, root: Path, backends: Collection[str] | None = None) -> LoadedFile:
    """Import a kernel file afresh. Its directory stays first on ``sys.path`` until the next file is loaded.

    Args:
        path: the kernel file.
        root: its project's directory.
        backends: if given, a kernel for any other backend is an error.

    Raises:
        FreshProcessNeeded: in a worker, if what this process loaded before may have caused an error.
    """
    global _last_loaded
    path, root = normalize_path(path), root.resolve()
    is_used = OBSERVER.may_restart and OBSERVER.generation > 0
    if OBSERVER.may_restart and (ACCESSES.has_stale_start or (is_used and OBSERVER.has_stale_extensions)):
        raise FreshProcessNeeded(f"it had read an earlier version of something that {path} needs")
    OBSERVER.observe_kernel_file(path, root)
    if not ACCESSES.survives_load:
        ACCESSES.begin_epoch()
    with collect_declarations(path) as collector:
        try:
            _execute_kernel_file(path)
            ACCESSES.check_trust()
        except BaseException as error:
            if is_used and not isinstance(error, _LASTING_ERRORS):
                raise FreshProcessNeeded(f"{path} failed, perhaps because of what was loaded before") from error
            collector.kernels.clear()
            collector.errors.append(_make_import_error(error, path))
    if backends is not None:
        _refuse_unknown_backends(collector, backends)
    _last_loaded = LoadedFile(path, tuple(collector.kernels), tuple(collector.errors), {path: ABSENT, **OBSERVER.files})
    return _last_loaded


def load_if_changed(path: Path, root: Path, digests: Mapping[Path, str]) -> LoadedFile:
    """Return the kernel file that is loaded, if it was loaded from the bytes in ``digests``; else load it.

    Data files must agree as well, because the file's code may have kept data that it read from them.

    Raises:
        FreshProcessNeeded: as :func:`load_file`.
    """
    path = normalize_path(path)
    is_read = all(stamps_agree(digest, digests.get(place, digest)) for place, digest in ACCESSES.files.items())
    if _last_loaded is not None and _last_loaded.path == path and is_read and OBSERVER.has_loaded(path, digests):
        return _last_loaded
    return load_file(path, root)


def forget_modules() -> None:
    """Drop the modules of the kernel file that was loaded last, and restore ``sys.path`` and ``os.environ``."""
    OBSERVER.forget_kernel_file()
    # An application's kernel files are not observed, so drop their modules here.
    for name in filter(is_kernel_module, list(sys.modules)):
        del sys.modules[name]


def get_kernel_module(path: Path) -> ModuleType:
    """Return a kernel file's module as this process loaded it last, or load it.

    An application may run the file itself, or have imported it. Then it is the application's own module.

    Raises:
        KernelFileError: it cannot be imported.
    """
    path = normalize_path(path)
    name = _make_module_name(path)
    if name in sys.modules:
        return sys.modules[name]
    if not OBSERVER.may_restart:
        return _load_into_application(path, name)
    loaded = load_file(path, path.parent)
    if name not in sys.modules:
        raise loaded.errors[0]
    return sys.modules[name]


def _load_into_application(path: Path, name: str) -> ModuleType:
    """Return the module that an application already has of a kernel file, or load the file."""
    for module in list(sys.modules.values()):
        if find_module_file(module) == path:
            return module
    sys.path.insert(0, str(path.parent))
    try:
        with collect_declarations(path):
            return _run_module(path, name, read_regular_file(path))[0]
    except Exception as error:
        raise _make_import_error(error, path) from error
    finally:
        with suppress(ValueError):
            sys.path.remove(str(path.parent))


def is_kernel_module(name: str) -> bool:
    """Return whether a module's name is one that a kernel file gets when it is loaded."""
    return _KERNEL_MODULE.match(name) is not None


def find_module_file(module: ModuleType) -> Path | None:
    """Return the path of a module's source, or ``None`` for one without."""
    file = getattr(module, "__file__", None)
    return normalize_path(Path(file)) if isinstance(file, str) else None


def _execute_kernel_file(path: Path) -> None:
    try:
        with OBSERVER.pause_recording():
            text = read_regular_file(path)
    except NotRegularFile as error:
        hint = "put a Python file in its place"
        raise KernelFileError(f"{path} cannot be read: {error.strerror}", path=str(path), hint=hint) from error
    _, OBSERVER.import_end = _run_module(path, _make_module_name(path), OBSERVER.record_execution(path, text))


def _run_module(path: Path, name: str, text: bytes) -> tuple[ModuleType, ImportEnd | None]:
    """Run a kernel file as the module ``name``; return it, and where its import ended before the file's end."""
    code = compile(text, str(path), "exec", dont_inherit=True)
    end = None
    module = ModuleType(name)
    module.__file__ = str(path)
    # Dataclasses and compilers look their module up by its name, even long after the import.
    sys.modules[name] = module
    try:
        exec(code, module.__dict__)
    except EndOfDeclarations as reached:
        # Find the line of the file that called `ktuned.tune`, and whether directly or through a function of the file.
        frames = [(frame, line) for frame, line in traceback.walk_tb(reached.__traceback__)]
        called = next(place for place, (frame, _) in enumerate(frames) if frame.f_code is code)
        next_frame, _ = frames[called + 1]
        end = ImportEnd(frames[called][1], is_ours(next_frame.f_globals.get("__name__", "")))
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module, end


def _make_module_name(path: Path) -> str:
    # Files with the same name in two directories must not become one module.
    return f"_ktuned_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}_{path.stem}"


def _make_import_error(error: BaseException, path: Path) -> KernelFileError:
    if isinstance(error, KernelFileError):
        return error
    if isinstance(error, Untrusted):
        return KernelFileError(error.message, path=str(path), hint=error.hint)
    # The place: where the syntax is wrong, or the innermost line of the project's own code.
    place, line, words = path, 0, fold_to_line(error)
    if isinstance(error, SyntaxError) and error.filename:
        place, line, words = Path(error.filename), error.lineno or 0, fold_to_line(error.msg)
    else:
        for frame, number in traceback.walk_tb(error.__traceback__):
            file = Path(frame.f_code.co_filename)
            if file == path or (
                OBSERVER.counts_by_content(str(file)) and not is_ours(frame.f_globals.get("__name__", ""))
            ):
                place, line = file, number
    reason, hint = ": ".join(filter(None, (type(error).__name__, words))), ""
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        if distribution := suggest_distribution(package):
            reason, hint = f"{package} is not installed: {words}", f"pip install {distribution} into {sys.executable}"
        else:
            hint = f"install it into {sys.executable}, or fix the import"
    if isinstance(error, SystemExit):
        hint = (
            "workers import the file, without the program's arguments: put code that is for the program alone below "
            "`if __name__ == '__main__':`"
        )
    excerpt = _quote_syntax_error(error) if isinstance(error, SyntaxError) else ""
    return KernelFileError(f"{place}:{line}: {reason}", path=str(place), line=line, hint=hint, excerpt=excerpt)


def _quote_syntax_error(error: SyntaxError) -> str:
    """Return the line of a syntax error with a caret below it; empty if Python does not give the line."""
    line = (error.text or "").rstrip("\n").expandtabs(1)
    source = line.lstrip()
    if not source or len(source) > MAX_EXCERPT_CHARS or not error.offset:
        return ""
    # Offsets count from 1. They point behind the line if something is missing at its end.
    column = min(max(0, error.offset - 1 - (len(line) - len(source))), len(source))
    return f"{source}\n{' ' * column}^"


def suggest_distribution(package: str) -> str:
    """Return a package's name for pip; empty for packages outside this field, whose names may differ."""
    if package.startswith("ktuned_"):
        extra = find_extra(package.removeprefix("ktuned_"))
        return f"'{extra}'" if extra else ""
    return _DISTRIBUTION_OF_PACKAGE.get(package, "")


def _refuse_unknown_backends(collector: DeclarationCollector, backends: Collection[str]) -> None:
    for kernel in [kernel for kernel in collector.kernels if kernel.backend not in backends]:
        known = listed(sorted(backends), near=kernel.backend)
        collector.kernels.remove(kernel)
        collector.errors.append(
            kernel.site.make_error(
                f"there is no backend {kernel.backend!r} {known}",
                hint=install_hint(kernel.backend, sys.executable),
            )
        )
