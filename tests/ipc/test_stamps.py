"""Stamps of directories: each link of a chain counts, and so does the directory at its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from ktuned.ipc import stamp, stamp_directory, stamp_files, stamps_agree


@pytest.fixture
def linked_directory(tmp_path: Path) -> Path:
    """A link to a link to a directory, as /usr/local/cuda is."""
    (tmp_path / "cuda-13").mkdir()
    (tmp_path / "alternative").symlink_to(tmp_path / "cuda-13")
    (tmp_path / "cuda").symlink_to(tmp_path / "alternative")
    return tmp_path / "cuda"


def test_every_place_of_a_linked_directory_agrees_with_its_stamp(linked_directory: Path) -> None:
    """Nothing has changed, whether the directory was only queried or also listed."""
    for stored in (stamp_directory(linked_directory), stamp(linked_directory)):
        stamps = stamp_files([linked_directory], {linked_directory: stored})
        assert set(stamps) == {str(linked_directory), str(linked_directory.parent / "alternative")}
        assert all(stamps_agree(digest, stamp(Path(path))) for path, digest in stamps.items())


def test_a_link_of_the_chain_that_is_swapped_changes_the_stamp(linked_directory: Path) -> None:
    stored = [stamp_directory(linked_directory), stamp(linked_directory)]
    other = linked_directory.parent / "cuda-14"
    other.mkdir()
    (linked_directory.parent / "alternative").unlink()
    (linked_directory.parent / "alternative").symlink_to(other)
    assert not any(stamps_agree(old_stamp, stamp(linked_directory)) for old_stamp in stored)


def test_names_count_only_where_both_stamps_have_them(tmp_path: Path) -> None:
    """A directory that was queried but not listed is the same with other names in it."""
    queried, listed = stamp_directory(tmp_path), stamp(tmp_path)
    (tmp_path / "new").touch()
    assert stamps_agree(queried, stamp(tmp_path))
    assert not stamps_agree(listed, stamp(tmp_path))
    assert not stamps_agree(queried, "")
