"""``config`` and ``logs``: they work without a daemon."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ktuned.catalog.project_file import parse_project
from tests.cli.conftest import Run


def test_init_writes_a_file_whose_every_setting_holds(run: Run, tmp_path: Path) -> None:
    """The file is valid as it is and with its comments taken away; a second ``init`` changes nothing."""
    place = tmp_path / "my kernels!"
    place.mkdir()
    ran = run("config", "--init", str(place))
    file = place / "ktuned.toml"
    assert (ran.code, ran.out) == (0, f"wrote {file}: the project is named my-kernels\n")
    written = file.read_text()
    assert parse_project(written.encode(), "f").name == "my-kernels"
    settings = [line.removeprefix("# ") for line in written.splitlines() if "=" in line or "[" in line]
    project = parse_project("\n".join(settings).encode(), "f")
    assert (project.python, project.env, project.defaults.trials) == (
        ".venv/bin/python", {"OMP_NUM_THREADS": "8"}, 200,
    )  # fmt: skip
    ran = run("config", "--init", str(place))
    assert (ran.code, file.read_text()) == (2, written)
    assert "exists already" in ran.err


def test_config_says_where_each_value_comes_from(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value of config.toml, of the environment, of ktuned.toml, and a default; a wrong file is exit 2."""
    home, project = tmp_path / "home", tmp_path / "p"
    home.mkdir()
    project.mkdir()
    (home / "config.toml").write_text("compile_slots = 3\npolicy = 'always'\n[deadlines]\ncompile = 7.0\n")
    (project / "ktuned.toml").write_text("name = 'gemms'\n[defaults]\ntrials = 9\n")
    (project / "below").mkdir()
    monkeypatch.chdir(project / "below")
    ran = run("config", "--json")
    (found,) = ran.values
    values = {entry["name"]: (entry["value"], entry["source"]) for entry in found}
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
    assert "compile_slots" in run("config").out
    (home / "config.toml").write_text("compile_slots = 'x'\n")
    assert run("config").code == 2


def test_logs_prints_the_last_lines(run: Run, tmp_path: Path) -> None:
    """The last lines in their order; without a log it is one line and exit 1."""
    ran = run("logs")
    assert (ran.code, "there is no log at" in ran.err) == (1, True)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "serve.log").write_text("one\ntwo\nthree\n")
    assert run("logs", "-n", "2").out == "two\nthree\n"


def test_logs_follows_the_file(tmp_path: Path) -> None:
    """With ``-f`` a line comes as soon as it is whole."""
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
