"""An artifact's files, and how TileLang loads them in a program without compiling."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ktuned.model import BackendError, Unsupported
from ktuned_tilelang.execution import HOST_SOURCE_FILE, PARAMETERS_FILE, SOURCE_FILE
from ktuned_tilelang.recipe import Recipe

KNOWN_SERIES, FIRST_PATCH = ("0", "1"), 15
"""The series of TileLang whose stages and tuner this plugin calls, and its first supported patch release."""

_PATCH = re.compile(r"\d+\.\d+\.(\d+)")

RECIPE_FILE = "kernel.json"
SIGNATURE_FILE = "signature.json"
"""The kernel's parameters and buffers, as a TileLang program without a body: JSON, which runs no code."""


def load(artifact: str | os.PathLike[str]) -> Any:
    """Load an artifact and return TileLang's own kernel (a ``JITKernel``): it returns the parameters of ``out_idx``.

    Raises:
        Unsupported: another series of TileLang compiled the artifact, or a file that its execution backend needs is
            missing.
        BackendError: TileLang cannot be imported.
    """
    directory = Path(artifact)
    recipe = read_recipe(directory)
    return load_kernel(directory, recipe, recipe.out_idx)


def read_recipe(directory: Path) -> Recipe:
    """Return the content of ``kernel.json``, after a check that all code files are there.

    Raises:
        Unsupported: a code file is missing.
    """
    recipe = Recipe.from_json((directory / RECIPE_FILE).read_text())
    missing = [name for name in recipe.code_files if not (directory / name).is_file()]
    if missing:
        raise Unsupported(
            f"the artifact has no {', '.join(missing)}, which the execution backend {recipe.execution_backend!r} needs"
        )
    return recipe


def load_kernel(directory: Path, recipe: Recipe, out_idx: Sequence[int]) -> Any:
    """Load an artifact as TileLang's kernel, whose calls return the parameters of ``out_idx``.

    Raises:
        Unsupported: another TileLang compiled it.
        BackendError: TileLang cannot be imported.
    """
    try:
        tilelang: Any = importlib.import_module("tilelang")
        adapters: Any = importlib.import_module("tilelang.jit.adapter.base")
        parameters: Any = importlib.import_module("tilelang.engine.param")
    except ImportError as error:
        raise BackendError(f"TileLang cannot be imported: {error}", hint="pip install tilelang") from error
    if release_series(recipe.tilelang) != release_series(tilelang.__version__):
        raise Unsupported(f"compiled by TileLang {recipe.tilelang}, and {tilelang.__version__} is installed")
    texts = {
        name: adapters.CachedTextSource(text=(directory / name).read_text()) for name in (SOURCE_FILE, HOST_SOURCE_FILE)
    }
    return tilelang.JITKernel.from_database(
        func=tilelang.tvm.ir.load_json((directory / SIGNATURE_FILE).read_text()),
        host_kernel_source=texts[HOST_SOURCE_FILE],
        device_kernel_source=texts[SOURCE_FILE],
        kernel_lib_path=str(directory / recipe.code_files[0]),
        params=parameters.load_kernel_params((directory / PARAMETERS_FILE).read_text()),
        target=dict(recipe.target_config),
        target_host=None,
        out_idx=list(out_idx) or None,
        execution_backend=recipe.execution_backend,
        pass_configs=dict(recipe.pass_configs),
        compile_flags=list(recipe.compile_flags) or None,
    )


def release_series(version: str) -> tuple[str, ...]:
    """Return the part of a version that artifacts are tied to: 0.1 of 0.1.15."""
    return tuple(version.partition("+")[0].split(".")[:2])


def check_version(version: str) -> None:
    """Check that this plugin supports a version of TileLang, because it calls TileLang's inner stages and its tuner.

    Raises:
        ImportError: the version is too old, or belongs to a later series.
    """
    if release_series(version) != KNOWN_SERIES or not (match := _PATCH.match(version)) or int(match[1]) < FIRST_PATCH:
        first = ".".join((*KNOWN_SERIES, str(FIRST_PATCH)))
        raise ImportError(
            f"TileLang {version} is installed; this plugin supports {'.'.join(KNOWN_SERIES)}, from {first} on"
        )
