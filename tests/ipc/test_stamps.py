"""Stamps of directories: what a chain of links leads to counts, under each of its links."""

from __future__ import annotations

from pathlib import Path

import pytest

from ktuned.ipc import stamp, stamp_directory, stamp_files, stamps_agree


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """Return a link to a link to a directory, as /usr/local/cuda is."""
    (tmp_path / "cuda-13").mkdir()
    (tmp_path / "alternative").symlink_to(tmp_path / "cuda-13")
    (tmp_path / "cuda").symlink_to(tmp_path / "alternative")
    return tmp_path / "cuda"


def test_every_place_of_a_linked_directory_agrees_with_its_stamp(linked: Path) -> None:
    """Nothing has changed, neither for one that was asked for nor for one that was listed."""
    for held in (stamp_directory(linked), stamp(linked)):
        found = stamp_files([linked], {linked: held})
        assert set(found) == {str(linked), str(linked.parent / "alternative")}
        assert all(stamps_agree(digest, stamp(Path(place))) for place, digest in found.items())


def test_a_link_of_the_chain_that_is_swapped_changes_the_stamp(linked: Path) -> None:
    """Whatever is in the new directory."""
    held = [stamp_directory(linked), stamp(linked)]
    other = linked.parent / "cuda-14"
    other.mkdir()
    (linked.parent / "alternative").unlink()
    (linked.parent / "alternative").symlink_to(other)
    assert not any(stamps_agree(one, stamp(linked)) for one in held)


def test_names_count_only_where_both_stamps_have_them(tmp_path: Path) -> None:
    """A directory that was asked for, and not listed, is the same with other names in it."""
    asked, listed = stamp_directory(tmp_path), stamp(tmp_path)
    (tmp_path / "new").touch()
    assert stamps_agree(asked, stamp(tmp_path))
    assert not stamps_agree(listed, stamp(tmp_path))
    assert not stamps_agree(asked, "")
