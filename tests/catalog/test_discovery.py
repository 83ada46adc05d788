from pathlib import Path

import pytest

from ktuned.catalog.discovery import find_kernel_files, is_kernel_file


@pytest.mark.parametrize(
    ("name", "expected"),
    [("tune_a.py", True), ("/x/tune_a.py", True), ("tune.py", False), ("tune_a.pyc", False), ("/tune_x/a.py", False)],
)
def test_kernel_files_by_name(name: str, expected: bool) -> None:
    """Only the file's own name counts."""
    assert is_kernel_file(name) is expected


def test_files_are_found_where_people_keep_them(tmp_path: Path) -> None:
    """Hidden directories, builds, installed packages and virtual environments hold no kernel files of a project."""
    kept = ["tune_z.py", "a/tune_a.py", "a/b/tune_b.py"]
    left = [".git/tune_x.py", "a/build/tune_x.py", "env/lib/tune_x.py", "a/node_modules/tune_x.py", "a/other.py"]
    for name in [*kept, *left, "env/pyvenv.cfg"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert find_kernel_files(str(tmp_path)) == sorted(str(tmp_path / name) for name in kept)
    assert find_kernel_files(str(tmp_path / "tune_z.py")) == [str(tmp_path / "tune_z.py")]
    assert find_kernel_files(str(tmp_path / "a" / "other.py")) == []
    assert find_kernel_files(str(tmp_path / "nothing")) == []
