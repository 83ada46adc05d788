"""Fixtures of the command line's tests: commands run in this process, against a fake daemon's socket."""

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
class CommandResult:
    """A command's exit status and output."""

    code: int
    out: str
    err: str

    @property
    def json_lines(self) -> list[Any]:
        """Every line of stdout as JSON; raises if a line is something else."""
        return [json.loads(line) for line in self.out.splitlines()]


RunCli = Callable[..., CommandResult]
StartDaemon = Callable[..., FakeDaemon]


@pytest.fixture(autouse=True)
def _no_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a socket that no daemon serves, and an empty home."""
    monkeypatch.setenv("KTUNED_SOCKET", str(tmp_path / "nobody.sock"))
    monkeypatch.setenv("KTUNED_HOME", str(tmp_path / "home"))


@pytest.fixture
def run_cli(capsys: pytest.CaptureFixture[str]) -> RunCli:
    """Return a function that runs one command in this process."""

    def run(*arguments: str) -> CommandResult:
        code = main(arguments)
        captured = capsys.readouterr()
        return CommandResult(code, captured.out, captured.err)

    return run


@pytest.fixture
def start_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[StartDaemon]:
    """Return a function that starts a fake daemon, which later commands find."""
    with ExitStack() as daemons:

        def start(*, events: list[dict[str, Any]] | None = None, **answers: Any) -> FakeDaemon:
            daemon = daemons.enter_context(FakeDaemon(tmp_path, answers, events))
            monkeypatch.setenv("KTUNED_SOCKET", str(daemon.path))
            return daemon

        yield start
