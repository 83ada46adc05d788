"""``config`` and ``logs`` need no daemon."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ktuned.catalog.project_file import parse_project
from tests.cli.conftest import RunCli


def test_init_writes_a_valid_file(run_cli: RunCli, tmp_path: Path) -> None:
    """The file is valid with and without its comment signs; a second ``init`` changes nothing."""
    directory = tmp_path / "my kernels!"
    directory.mkdir()
    result = run_cli("config", "--init", str(directory))
    file = directory / "ktuned.toml"
    assert (result.code, result.out) == (0, f"wrote {file}: the project is named my-kernels\n")
    text = file.read_text()
    assert parse_project(text.encode(), "f").name == "my-kernels"
    settings = [line.removeprefix("# ") for line in text.splitlines() if "=" in line or "[" in line]
    project = parse_project("\n".join(settings).encode(), "f")
    assert (project.python, project.env, project.defaults.trials) == (
        ".venv/bin/python", {"OMP_NUM_THREADS": "8"}, 200,
    )  # fmt: skip
    result = run_cli("config", "--init", str(directory))
    assert (result.code, file.read_text()) == (2, text)
    assert "exists already" in result.err


def test_config_says_where_each_value_comes_from(
    run_cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sources are config.toml, the environment, ktuned.toml and the defaults; a wrong file exits 2."""
    home, project = tmp_path / "home", tmp_path / "p"
    home.mkdir()
    project.mkdir()
    (home / "config.toml").write_text("compile_slots = 3\npolicy = 'always'\n[deadlines]\ncompile = 7.0\n")
    (project / "ktuned.toml").write_text("name = 'gemms'\n[defaults]\ntrials = 9\n")
    (project / "below").mkdir()
    monkeypatch.chdir(project / "below")
    result = run_cli("config", "--json")
    (settings,) = result.json_lines
    values = {entry["name"]: (entry["value"], entry["source"]) for entry in settings}
    file = str(home / "config.toml")
    assert values["compile_slots"] == (3, file)
    # Written, though it is the default.
    assert values["share.url"] == ("", "default")
    assert values["policy"] == ("always", file)
    assert values["spares"] == (True, "default")
    assert values["deadlines.compile"] == (7.0, file)
    assert values["deadlines.inspect"][1] == "default"
    assert values["state"] == (str(home), "KTUNED_HOME")
    assert values["socket"][1] == "KTUNED_SOCKET"
    assert values["project.name"] == ("gemms", str(project / "ktuned.toml"))
    assert values["project.trials"] == (9, str(project / "ktuned.toml"))
    assert "compile_slots" in run_cli("config").out
    (home / "config.toml").write_text("compile_slots = 'x'\n")
    assert run_cli("config").code == 2


def test_logs_prints_the_last_lines(run_cli: RunCli, tmp_path: Path) -> None:
    """Without a log it prints one line and exits 1."""
    result = run_cli("logs")
    assert (result.code, "there is no log at" in result.err) == (1, True)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "serve.log").write_text("one\ntwo\nthree\n")
    assert run_cli("logs", "-n", "2").out == "two\nthree\n"


def test_logs_follows_the_file(tmp_path: Path) -> None:
    """``-f`` prints a line as soon as it is complete."""
    (tmp_path / "home").mkdir()
    path = tmp_path / "home" / "serve.log"
    path.write_text("one\n")
    with subprocess.Popen([sys.executable, "-m", "ktuned", "logs", "-f"], stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "one\n"
        with path.open("a") as log:
            log.write("tw")
            log.flush()
            log.write("o\n")
        assert reader.stdout.readline() == "two\n"
        reader.terminate()
