"""How the tests of the command line run it: in this process, against a fake daemon's socket."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ktuned.cli import main
from tests.cli.fake_daemon import FakeDaemon


@dataclass(frozen=True)
class Ran:
    """What a command left: its exit status and what it printed."""

    code: int
    out: str
    err: str

    @property
    def values(self) -> list[Any]:
        """Every line of stdout, read as JSON: fails when anything else is among them."""
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Ran]
Serve = Callable[..., FakeDaemon]


@pytest.fixture(autouse=True)
def _no_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point the command line at a socket that no one serves, and at an empty home."""
    monkeypatch.setenv("KTUNED_SOCKET", str(tmp_path / "nobody.sock"))
    monkeypatch.setenv("KTUNED_HOME", str(tmp_path / "home"))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run one command in this process."""

    def run_command(*arguments: str) -> Ran:
        code = main(arguments)
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run_command


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Serve]:
    """Start a fake daemon that the commands will find."""
    with ExitStack() as daemons:

        def start(*, events: list[dict[str, Any]] | None = None, **answers: Any) -> FakeDaemon:
            daemon = daemons.enter_context(FakeDaemon(tmp_path, answers, events))
            monkeypatch.setenv("KTUNED_SOCKET", str(daemon.path))
            return daemon

        yield start
