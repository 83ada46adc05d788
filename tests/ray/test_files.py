"""Files on their way to a node: which travel, which are new there, and what comes back."""

import hashlib
from pathlib import Path

import pytest

from ktuned.ipc import locate_artifact, manifest
from ktuned_ray.files import Files, Tree, lay_out, read_files

KEY = "0" * 64


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Return the files of a daemon."""
    return Files(tmp_path / "artifacts")


def _bring(files: Files, tree: Tree, place: Path, before: dict[str, str]) -> dict[str, str]:
    """Bring a tree to a node's directory that has some files."""
    changed = [(f"{tree.top}/{name}", digest) for name, digest in tree.files.items() if before.get(name) != digest]
    contents: dict[str, bytes] = {}
    for holder in files.provide_contents(changed)[0]:
        contents |= holder
    return lay_out(place, tree, before, contents)


def test_a_project_travels_as_it_is_and_then_its_changes(files: Files, tmp_path: Path) -> None:
    """Its own files, those that a context lists, and no hidden ones; removed files go, too."""
    root, node = tmp_path / "root", tmp_path / "node"
    for name, text in {"a.py": "a", "old.py": "old", ".git/config": "g", "../beside.h": "b", "run.sh": "r"}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "run.sh").chmod(0o755)
    listed = {"a.py": _digest("a"), "../beside.h": _digest("b"), "absent.py": ""}

    def take(listed: dict[str, str]) -> Tree:
        return files.list_trees(("p", str(root)), listed, ())["p"]

    first = take(listed)
    held = _bring(files, first, node, {})
    there = node / str(root)[1:]
    assert {path.name for path in there.iterdir()} == {"a.py", "old.py", "run.sh"}
    assert (there.parent / "beside.h").read_text() == "b"
    assert (there / "run.sh").stat().st_mode & 0o100
    assert take(listed) is first
    (root / "a.py").write_text("new")
    (root / "old.py").unlink()
    second = take({**listed, "a.py": _digest("new")})
    assert second is not first
    _bring(files, second, node, held)
    assert (there / "a.py").read_text() == "new"
    assert not (there / "old.py").exists()


def test_a_file_that_is_saved_meanwhile_is_left_out(files: Files, tmp_path: Path) -> None:
    """Its bytes are not those of the digest; the next request looks at the project again."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "a.py").write_text("a")
    tree = files.list_trees(("p", str(root)), {"a.py": _digest("a")}, ())["p"]
    (root / "a.py").write_text("b")
    name = f"{root}/a.py"[1:]
    assert files.provide_contents([(f"/{name}", tree.files[name])]) == ([], {_digest("a")})
    assert files.list_trees(("p", str(root)), {"a.py": _digest("b")}, ())["p"].files[name] == _digest("b")


@pytest.mark.parametrize("damage", ["", "other bytes", "../../escaped"])
def test_an_artifact_comes_back_only_as_it_was_sealed(damage: str, files: Files, tmp_path: Path) -> None:
    """Other bytes, or names that lead elsewhere, are refused; what was sealed here goes to a node as it is."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "kernel.so").write_bytes(b"binary")
    manifest.write(source, key=KEY, backend="fake", facts={})
    carried = read_files(source)
    if damage == "other bytes":
        carried["kernel.so"] = b"other"
    elif damage:
        carried[damage] = b""
    place = locate_artifact(tmp_path / "artifacts", KEY)
    if damage:
        with pytest.raises(manifest.DamagedArtifact):
            files.seal_artifact(KEY, carried)
        assert list(place.parent.iterdir()) == []
        return
    assert files.seal_artifact(KEY, carried) > 0
    assert files.seal_artifact(KEY, carried) == 0
    ((directory, tree),) = files.list_trees(("p", ""), None, (KEY,)).items()
    assert directory == f"artifacts/{KEY[:2]}/{KEY}"
    _bring(files, tree, tmp_path / "node", {})
    assert read_files(tmp_path / "node") == carried
