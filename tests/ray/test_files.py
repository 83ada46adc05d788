"""Files for a node: which are sent, which the node has, and what returns."""

import hashlib
from pathlib import Path

import pytest

from ktuned.ipc import locate_artifact, manifest
from ktuned_ray.files import Files, Tree, lay_out, read_files

KEY = "0" * 64


def digest_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def daemon_files(tmp_path: Path) -> Files:
    """Return a daemon's files."""
    return Files(tmp_path / "artifacts")


def send_tree(files: Files, tree: Tree, directory: Path, before: dict[str, str]) -> dict[str, str]:
    """Send a tree to a node's directory that has some files."""
    changes = [(f"{tree.top}/{name}", digest) for name, digest in tree.files.items() if before.get(name) != digest]
    contents: dict[str, bytes] = {}
    for holder in files.provide_contents(changes)[0]:
        contents |= holder
    return lay_out(directory, tree, before, contents)


def test_a_project_is_sent_once_and_then_its_changes(daemon_files: Files, tmp_path: Path) -> None:
    """Its own files and those that a context lists, without hidden ones; removed files are removed there."""
    root, node = tmp_path / "root", tmp_path / "node"
    for name, text in {"a.py": "a", "old.py": "old", ".git/config": "g", "../beside.h": "b", "run.sh": "r"}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "run.sh").chmod(0o755)
    listed = {"a.py": digest_text("a"), "../beside.h": digest_text("b"), "absent.py": ""}

    def take(listed: dict[str, str]) -> Tree:
        return daemon_files.list_trees(("p", str(root)), listed, ())["p"]

    first = take(listed)
    sent = send_tree(daemon_files, first, node, {})
    copy = node / str(root)[1:]
    assert {path.name for path in copy.iterdir()} == {"a.py", "old.py", "run.sh"}
    assert (copy.parent / "beside.h").read_text() == "b"
    assert (copy / "run.sh").stat().st_mode & 0o100
    assert take(listed) is first
    (root / "a.py").write_text("new")
    (root / "old.py").unlink()
    second = take({**listed, "a.py": digest_text("new")})
    assert second is not first
    send_tree(daemon_files, second, node, sent)
    assert (copy / "a.py").read_text() == "new"
    assert not (copy / "old.py").exists()


def test_a_file_that_is_saved_while_it_is_sent_is_left_out(daemon_files: Files, tmp_path: Path) -> None:
    """The next request compares the project again."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "a.py").write_text("a")
    tree = daemon_files.list_trees(("p", str(root)), {"a.py": digest_text("a")}, ())["p"]
    (root / "a.py").write_text("b")
    name = f"{root}/a.py"[1:]
    assert daemon_files.provide_contents([(f"/{name}", tree.files[name])]) == ([], {digest_text("a")})
    assert daemon_files.list_trees(("p", str(root)), {"a.py": digest_text("b")}, ())["p"].files[name] == digest_text(
        "b"
    )


@pytest.mark.parametrize("damage", ["", "other bytes", "../../escaped"])
def test_an_artifact_returns_only_as_it_was_sealed(damage: str, daemon_files: Files, tmp_path: Path) -> None:
    """Other bytes, or names that lead elsewhere, are refused. Artifacts of this machine are sent unchanged."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "kernel.so").write_bytes(b"binary")
    manifest.write(source, key=KEY, backend="fake", facts={})
    carried = read_files(source)
    if damage == "other bytes":
        carried["kernel.so"] = b"other"
    elif damage:
        carried[damage] = b""
    target = locate_artifact(tmp_path / "artifacts", KEY)
    if damage:
        with pytest.raises(manifest.DamagedArtifact):
            daemon_files.seal_artifact(KEY, carried)
        assert list(target.parent.iterdir()) == []
        return
    assert daemon_files.seal_artifact(KEY, carried) > 0
    assert daemon_files.seal_artifact(KEY, carried) == 0
    ((directory, tree),) = daemon_files.list_trees(("p", ""), None, (KEY,)).items()
    assert directory == f"artifacts/{KEY[:2]}/{KEY}"
    send_tree(daemon_files, tree, tmp_path / "node", {})
    assert read_files(tmp_path / "node") == carried
