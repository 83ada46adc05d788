"""Rewrites the tests' assertions once, before pytest-xdist starts its processes.

Each process of pytest-xdist imports every test, and would spend 9 s on rewriting the same assertions. pytest has no
interface for this; the names below are those of the version in constraints.txt.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from _pytest.assertion import rewrite


def rewrite_assertions(config: pytest.Config) -> None:
    """Write the rewritten bytecode of all tests that the command line names, as pytest itself would."""
    state = config.stash[rewrite.assertstate_key]
    for path in _list_test_files(config):
        directory = rewrite.get_cache_dir(path)
        cached = directory / (path.name.removesuffix(".py") + rewrite.PYC_TAIL)
        if rewrite._read_pyc(path, cached) is None and rewrite.try_makedirs(directory):
            # pytest reports a file with a syntax error when it collects it.
            with suppress(SyntaxError):
                source_hash, code = rewrite._rewrite_test(path, config)
                rewrite._write_pyc(state, code, source_hash, cached)


def _list_test_files(config: pytest.Config) -> Iterator[Path]:
    for argument in config.args:
        path = Path(argument.partition("::")[0]).resolve()
        if path.is_dir():
            yield from path.rglob("test_*.py")
            yield from path.rglob("conftest.py")
        elif path.suffix == ".py":
            yield path
