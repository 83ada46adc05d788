"""Roots: which name, interpreter and environment a project gets."""

import sys
from pathlib import Path

import pytest

from ktuned.catalog.roots import (
    find_distribution_name,
    find_project_top,
    make_root,
    name_roots,
    remake_root,
    remake_roots,
)
from ktuned.ipc import Trust
from ktuned.model.errors import SettingsError
from ktuned.protocol.kernels import Root, RootSettings

FILE = "name = 'gemms'\npython = 'bin/python'\nenv = {A = '1', B = '1'}"


def directory(place: Path, text: str | None = None) -> str:
    """Make a directory, with a project file of some text."""
    place.mkdir(parents=True)
    if text is not None:
        (place / "ktuned.toml").write_text(text)
    return str(place)


def installed(site: Path, package: str, name: str) -> str:
    """Make a package and the record of the distribution that brought it."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n\nText: Name: wrong\n")
    (info / "RECORD").write_text(f"{package}/__init__.py,,\n{package}/tune_it.py,,\n")
    return directory(site / package)


def test_name_comes_from_the_first_that_gives_one(tmp_path: Path) -> None:
    """What was asked for, then the project file, then the distribution, then the directory."""
    site = tmp_path / "lib" / "site-packages"
    package = installed(site, "fast_gemms", "fast-gemms")
    installed(site, "fast", "other")
    assert make_root(directory(tmp_path / "plain")).name == "plain"
    assert make_root(package).name == "fast-gemms"
    (site / "fast_gemms" / "ktuned.toml").write_text(FILE)
    assert make_root(package).name == "gemms"
    assert make_root(package, name="mine").name == "mine"
    assert find_distribution_name(str(tmp_path / "plain")) == find_distribution_name(str(site)) == ""
    assert find_distribution_name(directory(site / "loose")) == ""


def test_interpreter_and_environment_follow_the_same_order(tmp_path: Path) -> None:
    """A path is relative to the root; of two values for a variable the one that was asked for counts."""
    place = directory(tmp_path / "p", FILE)
    root = make_root(place)
    assert (root.python, root.env) == (f"{place}/bin/python", {"A": "1", "B": "1"})
    root = make_root(place, python="/opt/python", env={"B": "2"})
    assert (root.python, root.env) == ("/opt/python", {"A": "1", "B": "2"})
    (tmp_path / "p" / "ktuned.toml").write_text("python = '/new/python'")
    again = remake_root(root)
    assert (again.name, again.python, again.env) == ("p", "/opt/python", {"B": "2"})
    assert remake_root(make_root(place)).python == "/new/python"
    (tmp_path / "p" / "ktuned.toml").unlink()
    assert remake_root(make_root(place)).python == sys.executable


def test_names_of_one_interpreter_are_one(tmp_path: Path) -> None:
    """``python3`` and ``python`` of one environment have the same workers; another Python there is another one."""
    scripts = tmp_path / "venv" / "bin"
    scripts.mkdir(parents=True)
    for name, target in (("python", sys.executable), ("python3", "python"), ("python2", "/bin/sh")):
        (scripts / name).symlink_to(target)
    pythons = [make_root(str(tmp_path), python=str(scripts / name)).python for name in ("python", "python3", "python2")]
    assert pythons == [str(scripts / name) for name in ("python", "python", "python2")]


def test_a_project_file_that_cannot_be_followed_keeps_the_known_name(tmp_path: Path) -> None:
    """A typing error costs no winners: a daemon that starts goes on with the name that the project had."""
    place = directory(tmp_path / "p", "name = ")
    root = make_root(place)
    assert (root.name, root.project_digest) == ("p", "")
    with pytest.raises(SettingsError):
        remake_root(root)
    assert [one.name for one in remake_roots([root], {place: "gemms"}, Trust())] == ["gemms"]


def root(path: str, name: str, *, is_asked: bool = False) -> Root:
    """Return a root, whose name was perhaps asked for."""
    return Root(path, name, "python", asked=RootSettings(name if is_asked else ""))


def test_checkouts_of_one_project_are_named_by_their_directories() -> None:
    """Two checkouts of one project are distinguished by their directories; a name that was asked for stays."""
    found = name_roots([root("/a/wt", "gemms"), root("/b/wt", "gemms"), root("/c/x", "x"), root("/d/x", "x")], {})
    assert [one.name for one in found] == ["gemms", "gemms-wt", "x", "d-x"]
    found = name_roots([root("/a/x", "x"), root("/b/y", "x", is_asked=True)], {}, taken=["a-x"])
    assert len({"a-x", *(one.name for one in found)}) == 3
    assert found[1].name == "x"


def test_a_root_keeps_the_name_that_it_had() -> None:
    """Which of two checkouts has the plain name does not change with the order or when the other one goes."""
    known = {"/a/wt": "gemms-wt", "/b/wt": "gemms"}
    roots = [root("/a/wt", "gemms"), root("/b/wt", "gemms")]
    assert [one.name for one in name_roots(roots, known)] == ["gemms-wt", "gemms"]
    assert [one.name for one in name_roots(roots[:1], known)] == ["gemms-wt"]
    assert [one.name for one in name_roots([root("/a/wt", "other")], known)] == ["other"]


def test_a_project_begins_at_its_file(tmp_path: Path) -> None:
    """A kernel file below it belongs to it; a file above that anyone could have written does not count."""
    top = directory(tmp_path / "open" / "p", "")
    below = directory(tmp_path / "open" / "p" / "a" / "b")
    assert find_project_top(below, Trust()) == top
    (tmp_path / "open" / "ktuned.toml").write_text("")
    (tmp_path / "open" / "ktuned.toml").chmod(0o666)
    other = directory(tmp_path / "open" / "q")
    assert find_project_top(other, Trust()) == other
