"""``ktuned.toml``: each error is one line that names the setting."""

from pathlib import Path

import pytest

from ktuned.catalog.project_file import Project, parse_project, read_project
from ktuned.ipc import Untrusted
from ktuned.model.errors import SettingsError
from ktuned.model.plan import PlanDefaults

WHOLE = b"""
name = "gemms"
python = ".venv/bin/python"
env = { OMP_NUM_THREADS = "1" }

[defaults]
preset = "fast"
trials = 200
time_limit_s = 60
"""


def test_all_that_it_may_say_is_read() -> None:
    """Each setting has its field; a missing setting follows the usual rules."""
    project = parse_project(WHOLE, "/p/ktuned.toml")
    assert (project.name, project.python, project.env) == ("gemms", ".venv/bin/python", {"OMP_NUM_THREADS": "1"})
    assert project.defaults == PlanDefaults("fast", 200, 60)
    nothing = parse_project(b"", "/p/ktuned.toml")
    assert (nothing.name, nothing.python, nothing.env, nothing.defaults) == ("", "", {}, PlanDefaults())
    assert len({project.digest, nothing.digest, ""}) == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nam = 'x'", "there is no setting nam (did you mean 'name'? there are: name, python, env, workers, defaults)"),
        ("name = 1", "name takes a name in quotes"),
        ("name = 'a:b'", "name takes a name in quotes"),
        ("name = ''", "name takes a name in quotes"),
        (f"name = '{'x' * 201}'", "up to 200 letters"),
        ("python = ['python3']", "python takes the path of an interpreter"),
        ("python = ' '", "python takes the path of an interpreter"),
        ("env = {A = 1}", "env takes a table of environment variables"),
        ("env = {'a b' = '1'}", "env takes a table of environment variables"),
        ("defaults = 1", "defaults takes a table"),
        ("[defaults]\npreset = 'quick'", "defaults.preset takes one of fast, default, thorough"),
        ("[defaults]\ntrials = 0", "defaults.trials takes a whole number above 0"),
        ("[defaults]\ntrials = true", "defaults.trials takes a whole number above 0"),
        ("[defaults]\ntime_limit_s = inf", "defaults.time_limit_s takes seconds above 0"),
        ("[defaults]\nstrategy = 'random'", "there is no setting defaults.strategy"),
        ("name = 'a'\nenv = ", "Invalid value"),
    ],
)
def test_a_wrong_file_is_one_clear_line(text: str, words: str) -> None:
    """The line names the file, the setting and the documentation."""
    with pytest.raises(SettingsError) as refused:
        parse_project(text.encode(), "/p/ktuned.toml")
    assert refused.value.message.startswith("/p/ktuned.toml: ")
    assert words in refused.value.message
    assert "\n" not in refused.value.message
    assert refused.value.hint


def test_bytes_that_are_not_text_are_refused() -> None:
    """TOML is UTF-8."""
    with pytest.raises(SettingsError, match="utf-8"):
        parse_project(b"name = '\xff'", "/p/ktuned.toml")


def test_a_file_is_read_only_where_others_cannot_write_it(tmp_path: Path) -> None:
    """It names an interpreter, so whoever can write it can run anything."""
    assert read_project(str(tmp_path)) == Project()
    path = tmp_path / "ktuned.toml"
    path.write_text("name = 'x'")
    assert read_project(str(tmp_path)).name == "x"
    path.chmod(0o666)
    with pytest.raises(Untrusted, match="can be written by others"):
        read_project(str(tmp_path))


def test_what_is_not_a_settings_file_is_refused(tmp_path: Path) -> None:
    """Examples are a directory and a huge file."""
    path = tmp_path / "ktuned.toml"
    path.mkdir()
    with pytest.raises(SettingsError, match="not a regular file"):
        read_project(str(tmp_path))
    path.rmdir()
    path.write_text("#" * 70_000)
    with pytest.raises(SettingsError, match="more than 65536 bytes"):
        read_project(str(tmp_path))
