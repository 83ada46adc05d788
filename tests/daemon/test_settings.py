from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ktuned.catalog.roots import make_root
from ktuned.daemon.settings import load_settings
from ktuned.fleet import choose_compile_slots
from ktuned.model.errors import SettingsError
from ktuned.tuning.limits import DEFAULT_DEADLINES


@pytest.fixture
def empty_home(tmp_path: Path) -> Path:
    """Return a home without a ``config.toml``."""
    return tmp_path / "home"


def write_config(home: Path, text: str | bytes) -> Path:
    home.mkdir(exist_ok=True)
    path = home / "config.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_without_a_file_all_settings_are_defaults(empty_home: Path) -> None:
    settings = load_settings({"KTUNED_HOME": str(empty_home)})
    assert (settings.state, settings.cache, settings.roots) == (empty_home, empty_home / "cache", ())
    assert settings.deadlines == DEFAULT_DEADLINES
    assert settings.compile_slots == choose_compile_slots(len(os.sched_getaffinity(0)))
    assert not empty_home.exists()


def test_each_field_of_the_config_file_is_applied(empty_home: Path, tmp_path: Path) -> None:
    write_config(
        empty_home,
        f"""
        compile_slots = 3
        artifacts_gib = 0.5
        contention = false
        [deadlines]
        compile = 7
        [[roots]]
        path = "{tmp_path}/project"
        name = "kernels"
        python = "bin/python"
        env = {{ A = "1" }}
        """,
    )
    settings = load_settings({"KTUNED_HOME": str(empty_home)})
    assert (settings.compile_slots, settings.artifacts_bytes, settings.file.contention) == (3, 2**29, False)
    assert settings.deadlines == {**DEFAULT_DEADLINES, "compile": 7}
    (root,) = settings.roots
    assert (root.path, root.name, root.env) == (f"{tmp_path}/project", "kernels", {"A": "1"})
    assert root.python == f"{tmp_path}/project/bin/python"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("compile_slot = 1", "there are: roots, deadlines, compile_slots"),
        ("compile_slot = 1", "there is no setting 'compile_slot' (did you mean 'compile_slots'? there are: "),
        ("compile_slots = 0", "compile_slots is 0"),
        ("compile_slots = 'two'", "compile_slots takes a whole number, not a text in quotes"),
        ("artifacts_gib = -1", "artifacts_gib is -1"),
        ("artifacts_gib = inf", "artifacts_gib is inf"),
        ("artifacts_gib = nan", "artifacts_gib is nan"),
        ("contention = 1", "contention takes true or false, not a whole number"),
        ("deadlines = {compiling = 1}", "'compiling'"),
        ("deadlines = {compile = 0}", "compile is 0"),
        ("deadlines = {compile = nan}", "compile is nan"),
        ("deadlines = {compile = inf}", "compile is inf"),
        ("deadlines = {compile = 'x'}", "deadlines.compile takes a number, not a text in quotes"),
        ("[[roots]]\nname = 'x'", "roots[0] lacks `path`"),
        ("compile_slots = 1.5", "compile_slots takes a whole number, not 1.5"),
        ("compile_slots = true", "compile_slots takes a whole number, not true"),
        ("bench_memory_gib = 2000-01-01", "bench_memory_gib takes a number, not a date or time"),
        ("devices = 'H200'", "devices takes a list, not a text in quotes"),
        ("devices = ['H200', 1]", "devices[1] takes a text in quotes, not a whole number"),
        ("roots = ['/x']", "roots[0] takes a table, not a text in quotes"),
        ("[[roots]]\npath = 'a/b'", "'a/b' is not absolute"),
        ("[[roots]]\npath = '~nobody-of-that-name/x'", "is not absolute"),
        (
            "[[roots]]\npath = '/x'\nnam = 'y'",
            "roots[0] has no setting 'nam' (did you mean 'name'? there are: path, ",
        ),
        ("[[roots]]\npath = '/x'\nenv = {A = 1}", "roots[0].env.A takes a text in quotes, not a whole number"),
        ("[[roots]]\npath = '/x'\n[[roots]]\npath = '/x/'", "/x is listed twice"),
        ("[[roots]]\npath = '/a/x'\n[[roots]]\npath = '/b/x'", "both named 'x'"),
        ("[[roots]", "line 1"),
        (b"# \xff", "utf-8"),
    ],
)
def test_a_wrong_field_is_one_line_of_error(empty_home: Path, text: str | bytes, words: str) -> None:
    """The error names the file and the field, with the remedy."""
    path = write_config(empty_home, text)
    with pytest.raises(SettingsError) as refused:
        load_settings({"KTUNED_HOME": str(empty_home)})
    assert refused.value.message.startswith(f"{path}: ")
    assert words in refused.value.message
    assert "\n" not in refused.value.message
    assert refused.value.hint


def test_a_root_s_interpreter_is_named_or_its_venv_or_the_daemon_s(tmp_path: Path) -> None:
    """The venv's link is not resolved, because the link makes it a venv."""
    assert make_root(str(tmp_path)).python == sys.executable
    own = tmp_path / ".venv" / "bin" / "python"
    own.parent.mkdir(parents=True)
    own.symlink_to(sys.executable)
    assert make_root(str(tmp_path)).python == str(own)
    assert make_root(str(tmp_path), python="/opt/python").python == "/opt/python"
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    assert make_root(str(link)).path == str(tmp_path.resolve())


@pytest.mark.parametrize(("cores", "lanes", "slots"), [(1, 1, 1), (2, 1, 1), (16, 1, 15), (16, 4, 12), (2, 8, 1)])
def test_compile_slots_are_the_cores_without_the_lanes_and_at_least_one(cores: int, lanes: int, slots: int) -> None:
    assert choose_compile_slots(cores, lanes) == slots


def test_a_directory_or_pipe_as_config_file_is_refused(tmp_path: Path) -> None:
    """Reading a pipe would block the whole daemon."""
    (tmp_path / "directory" / "config.toml").mkdir(parents=True)
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "config.toml")
    for home in (tmp_path / "directory", tmp_path / "pipe"):
        with pytest.raises(SettingsError, match="not a regular file"):
            load_settings({"KTUNED_HOME": str(home)})
