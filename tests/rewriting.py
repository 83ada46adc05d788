"""Rewriting of the tests' assertions, once for all processes of a run.

Each process of pytest-xdist imports every test: those that begin together would all rewrite what none has rewritten,
which takes each 9 s. pytest has no interface for this; the names below are those of the version in constraints.txt.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from _pytest.assertion import rewrite


def rewrite_assertions(config: pytest.Config) -> None:
    """Have the bytecode of all tests that the command line names, as pytest itself would write it."""
    state = config.stash[rewrite.assertstate_key]
    for path in _files(config):
        directory = rewrite.get_cache_dir(path)
        cached = directory / (path.name.removesuffix(".py") + rewrite.PYC_TAIL)
        if rewrite._read_pyc(path, cached) is None and rewrite.try_makedirs(directory):
            # One that is no Python is reported where it is collected.
            with suppress(SyntaxError):
                source_hash, code = rewrite._rewrite_test(path, config)
                rewrite._write_pyc(state, code, source_hash, cached)


def _files(config: pytest.Config) -> Iterator[Path]:
    for argument in config.args:
        place = Path(argument.partition("::")[0]).resolve()
        if place.is_dir():
            yield from place.rglob("test_*.py")
            yield from place.rglob("conftest.py")
        elif place.suffix == ".py":
            yield place
