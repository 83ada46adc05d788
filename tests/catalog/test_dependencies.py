"""The index of dependencies: which kernel files a changed path concerns."""

from __future__ import annotations

from ktuned.catalog.dependencies import Dependents
from ktuned.ipc import LISTING


def test_names_in_a_directory_concern_what_lists_it() -> None:
    """A new or removed file in such a directory concerns the kernel, and the directory is watched."""
    dependents = Dependents()
    dependents.set_dependencies("k", "/p/tune_k.py", {"/p/tune_k.py": "a", "/p/data": f"{LISTING}b"})
    assert dependents.find_dependents(["/p/data/new.bin"]) == {"/p/tune_k.py"}
    assert dependents.find_dependents(["/p/other/new.bin", "/p/new.bin"]) == set()
    assert dependents.directories == {"/p", "/p/data"}
    dependents.drop_dependencies("k")
    assert dependents.directories == set()
    assert dependents.find_dependents(["/p/data/new.bin"]) == set()
