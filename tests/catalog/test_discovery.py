from pathlib import Path

import pytest

from ktuned.catalog.discovery import find_kernel_files, guess_backend, is_kernel_file


@pytest.mark.parametrize(
    ("name", "expected"),
    [("tune_a.py", True), ("/x/tune_a.py", True), ("tune.py", False), ("tune_a.pyc", False), ("/tune_x/a.py", False)],
)
def test_kernel_files_by_name(name: str, expected: bool) -> None:
    """Only the file's own name counts."""
    assert is_kernel_file(name) is expected


def test_files_are_found_where_people_keep_them(tmp_path: Path) -> None:
    """Hidden directories, builds, installed packages and virtual environments contain no kernel files of a project."""
    kept = ["tune_z.py", "a/tune_a.py", "a/b/tune_b.py"]
    left = [".git/tune_x.py", "a/build/tune_x.py", "env/lib/tune_x.py", "a/node_modules/tune_x.py", "a/other.py"]
    for name in [*kept, *left, "env/pyvenv.cfg"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert find_kernel_files(str(tmp_path)) == sorted(str(tmp_path / name) for name in kept)
    assert find_kernel_files(str(tmp_path / "tune_z.py")) == [str(tmp_path / "tune_z.py")]
    assert find_kernel_files(str(tmp_path / "a" / "other.py")) == []
    assert find_kernel_files(str(tmp_path / "nothing")) == []


def test_a_backend_is_guessed_from_the_text(tmp_path: Path) -> None:
    """It is the only one that all files name; otherwise there is no guess."""
    one, other, none = (tmp_path / f"tune_{name}.py" for name in ("one", "other", "none"))
    one.write_text("@kernel(\n    backend='nvrtc',\n)")
    other.write_text('@kernel(backend = "triton")')
    none.write_text("from declared import *")
    files = [str(path) for path in (one, one, none, tmp_path / "missing.py")]
    assert guess_backend(files) == "nvrtc"
    assert guess_backend([*files, str(other)]) == ""
    assert guess_backend([str(none)]) == ""
