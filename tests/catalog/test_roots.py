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


def make_directory(place: Path, text: str | None = None) -> str:
    """Make a directory, with a project file if a text is given."""
    place.mkdir(parents=True)
    if text is not None:
        (place / "ktuned.toml").write_text(text)
    return str(place)


def install_package(site: Path, package: str, name: str) -> str:
    """Make a package and its distribution's record."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n\nText: Name: wrong\n")
    (info / "RECORD").write_text(f"{package}/__init__.py,,\n{package}/tune_it.py,,\n")
    return make_directory(site / package)


def test_name_comes_from_the_first_that_gives_one(tmp_path: Path) -> None:
    """The order is: the request, the project file, the distribution, the directory."""
    site = tmp_path / "lib" / "site-packages"
    package = install_package(site, "fast_gemms", "fast-gemms")
    install_package(site, "fast", "other")
    assert make_root(make_directory(tmp_path / "plain")).name == "plain"
    assert make_root(package).name == "fast-gemms"
    (site / "fast_gemms" / "ktuned.toml").write_text(FILE)
    assert make_root(package).name == "gemms"
    assert make_root(package, name="mine").name == "mine"
    assert find_distribution_name(str(tmp_path / "plain")) == find_distribution_name(str(site)) == ""
    assert find_distribution_name(make_directory(site / "loose")) == ""


def test_interpreter_and_environment_follow_the_same_order(tmp_path: Path) -> None:
    """A path is relative to the root; a variable's requested value precedes the file's."""
    place = make_directory(tmp_path / "p", FILE)
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
    """``python3`` and ``python`` of one environment share workers; another Python in it does not."""
    scripts = tmp_path / "venv" / "bin"
    scripts.mkdir(parents=True)
    for name, target in (("python", sys.executable), ("python3", "python"), ("python2", "/bin/sh")):
        (scripts / name).symlink_to(target)
    pythons = [make_root(str(tmp_path), python=str(scripts / name)).python for name in ("python", "python3", "python2")]
    assert pythons == [str(scripts / name) for name in ("python", "python", "python2")]


def test_a_project_file_that_cannot_be_followed_keeps_the_known_name(tmp_path: Path) -> None:
    """A typing error costs no winners: a starting daemon uses the project's earlier name."""
    place = make_directory(tmp_path / "p", "name = ")
    root = make_root(place)
    assert (root.name, root.project_digest) == ("p", "")
    with pytest.raises(SettingsError):
        remake_root(root)
    assert [root.name for root in remake_roots([root], {place: "gemms"}, Trust())] == ["gemms"]


def make_project_root(path: str, name: str, *, is_asked: bool = False) -> Root:
    """Return a root, whose name may be one that the user has set."""
    return Root(path, name, "python", asked=RootSettings(name if is_asked else ""))


def test_checkouts_of_one_project_are_named_by_their_directories() -> None:
    """A name that the user has set stays."""
    roots = name_roots(
        [
            make_project_root("/a/wt", "gemms"),
            make_project_root("/b/wt", "gemms"),
            make_project_root("/c/x", "x"),
            make_project_root("/d/x", "x"),
        ],
        {},
    )
    assert [root.name for root in roots] == ["gemms", "gemms-wt", "x", "d-x"]
    roots = name_roots(
        [make_project_root("/a/x", "x"), make_project_root("/b/y", "x", is_asked=True)], {}, taken=["a-x"]
    )
    assert len({"a-x", *(root.name for root in roots)}) == 3
    assert roots[1].name == "x"


def test_a_root_keeps_the_name_that_it_had() -> None:
    """The plain name stays with its checkout, whatever the order and when the other checkout is removed."""
    known = {"/a/wt": "gemms-wt", "/b/wt": "gemms"}
    roots = [make_project_root("/a/wt", "gemms"), make_project_root("/b/wt", "gemms")]
    assert [root.name for root in name_roots(roots, known)] == ["gemms-wt", "gemms"]
    assert [root.name for root in name_roots(roots[:1], known)] == ["gemms-wt"]
    assert [root.name for root in name_roots([make_project_root("/a/wt", "other")], known)] == ["other"]


def test_a_project_begins_at_its_file(tmp_path: Path) -> None:
    """A kernel file below it belongs to it; a project file that other users can write does not count."""
    top = make_directory(tmp_path / "open" / "p", "")
    below = make_directory(tmp_path / "open" / "p" / "a" / "b")
    assert find_project_top(below, Trust()) == top
    (tmp_path / "open" / "ktuned.toml").write_text("")
    (tmp_path / "open" / "ktuned.toml").chmod(0o666)
    other = make_directory(tmp_path / "open" / "q")
    assert find_project_top(other, Trust()) == other
