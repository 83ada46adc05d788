"""The daemon of the programs that call ``ktuned.tune``."""

from collections.abc import Iterator

import pytest

from tests.e2e.harness import Daemon


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Run one daemon for all programs of a module, which have a kernel each."""
    with Daemon(tmp_path_factory.mktemp("python")) as running:
        # Its connection is the fixture's, and no test's leak.
        running.client.lookup("none", {})
        yield running
