from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from ktuned.catalog.catalog import Catalog, Changes, Inspection, is_below, read_problem
from ktuned.catalog.project_file import PROJECT_FILE
from ktuned.model.errors import AmbiguousName, NotFound, UsageError
from ktuned.model.kernel import KernelInfo, SpaceInfo
from ktuned.model.keys import ProjectName
from ktuned.model.plan import Plan
from ktuned.model.values import Problem, Scalar
from ktuned.protocol import FileError
from ktuned.protocol.kernels import Root


def make_kernel(file: Path | str, name: str = "gemm", project: str = "p", **changes: Any) -> KernelInfo:
    """Return a kernel that a file declares."""
    base = KernelInfo(
        ProjectName(project),
        name,
        str(file),
        3,
        "fake",
        "d1",
        "s1",
        "p1",
        (),
        {str(file): "00"},
        (),
        None,
        None,
        SpaceInfo(),
        Plan(),
    )
    return replace(base, **changes)


def make_inspection(file: Path, *kernels: KernelInfo, errors: tuple[str, ...] = ()) -> Inspection:
    """Return the result of a file's inspection."""
    file_errors = tuple(FileError(str(file), 1, message, "") for message in errors)
    return Inspection(str(file), kernels, file_errors, {str(file): "00"})


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Two kernel files that exist."""
    paths = [tmp_path / "tune_a.py", tmp_path / "tune_b.py"]
    for path in paths:
        path.touch()
    return paths


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    """A catalog with one root and nothing in it."""
    return Catalog([Root(str(tmp_path), "p", "python")])


def map_kernels_to_files(catalog: Catalog) -> dict[str, str]:
    """Return the name of each kernel's file."""
    return {kernel.kernel: Path(kernel.file).name for kernel in catalog.kernels}


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ({}, Changes()),
        ({"stamps": {"x": "1"}, "line": 9}, Changes()),
        ({"digest": "d2"}, Changes(changed=("p:gemm",))),
        ({"plan_digest": "p2"}, Changes(replanned=("p:gemm",))),
        ({"digest": "d2", "plan_digest": "p2"}, Changes(changed=("p:gemm",))),
    ],
)
def test_apply_tells_what_a_save_changed(
    catalog: Catalog, files: list[Path], after: dict[str, Any], expected: Changes
) -> None:
    """A new digest is a change, a new plan a smaller one, and a comment none; the catalog is updated anyway."""
    before = make_kernel(files[0])
    assert catalog.apply_inspections([make_inspection(files[0], before)]) == Changes(
        added=("p:gemm",), inspected=("p:gemm",)
    )
    saved = replace(before, **after)
    changes = catalog.apply_inspections([make_inspection(files[0], saved)])
    known = {before.name: before} if expected.changed else {}
    assert changes == msgspec.structs.replace(expected, inspected=("p:gemm",), before=known)
    assert bool(changes) is bool(after.keys() & {"digest", "plan_digest"})
    assert catalog.kernels == [saved]


def test_apply_removes_what_is_no_longer_declared(catalog: Catalog, files: list[Path]) -> None:
    """A kernel disappears with its declaration and with its file."""
    catalog.apply_inspections(
        [
            make_inspection(files[0], make_kernel(files[0]), make_kernel(files[0], "add")),
            make_inspection(files[1], make_kernel(files[1], "mul")),
        ]
    )
    assert catalog.apply_inspections([make_inspection(files[0], make_kernel(files[0]))]).removed == ("p:add",)
    assert catalog.apply_inspections([], [str(files[1])]).removed == ("p:mul",)
    assert map_kernels_to_files(catalog) == {"gemm": "tune_a.py"}


def test_broken_file_keeps_its_kernels(catalog: Catalog, files: list[Path]) -> None:
    """The kernels stay, and the error is reported until the file is repaired."""
    catalog.apply_inspections([make_inspection(files[0], make_kernel(files[0]))])
    changes = catalog.apply_inspections([make_inspection(files[0], errors=("tune_a.py:1: no",))])
    assert (changes.removed, len(changes.errors)) == ((), 1)
    assert map_kernels_to_files(catalog) == {"gemm": "tune_a.py"}
    assert [error.message for error in catalog.list_errors_below(str(files[0].parent))] == ["tune_a.py:1: no"]
    assert catalog.find_dependents([str(files[0])]) == {str(files[0])}
    catalog.apply_inspections([make_inspection(files[0], make_kernel(files[0]))])
    assert catalog.errors == []


def test_good_kernel_of_a_file_with_an_error_goes_on(catalog: Catalog, files: list[Path]) -> None:
    """A bad declaration neither hides nor removes other kernels of its file."""
    catalog.apply_inspections([make_inspection(files[0], make_kernel(files[0]), make_kernel(files[0], "add"))])
    changes = catalog.apply_inspections(
        [make_inspection(files[0], make_kernel(files[0], digest="d2"), errors=("bad add",))]
    )
    assert (changes.changed, changes.removed) == (("p:gemm",), ())
    assert map_kernels_to_files(catalog) == {"gemm": "tune_a.py", "add": "tune_a.py"}


def test_taken_name_is_an_error_of_the_second_file(catalog: Catalog, files: list[Path]) -> None:
    """The first file keeps the name; the error says where both are."""
    catalog.apply_inspections([make_inspection(files[0], make_kernel(files[0]))])
    (error,) = catalog.apply_inspections([make_inspection(files[1], make_kernel(files[1], digest="d2"))]).errors
    assert error.path == str(files[1])
    assert f"{files[0]}:3" in error.message
    assert map_kernels_to_files(catalog) == {"gemm": "tune_a.py"}


@pytest.mark.parametrize("how", ["removed", "no longer declared"])
def test_freed_name_concerns_the_file_that_wanted_it(catalog: Catalog, files: list[Path], how: str) -> None:
    """The other file depends on the name's holder, and gets the name when it is free."""
    catalog.apply_inspections(
        [make_inspection(files[0], make_kernel(files[0])), make_inspection(files[1], make_kernel(files[1]))]
    )
    assert catalog.find_dependents([str(files[0])]) == {str(files[0]), str(files[1])}
    second = make_inspection(files[1], make_kernel(files[1]))
    changes = (
        catalog.apply_inspections([second], [str(files[0])])
        if how == "removed"
        else catalog.apply_inspections([make_inspection(files[0]), second])
    )
    assert (changes.removed, catalog.errors) == ((), [])
    assert map_kernels_to_files(catalog) == {"gemm": "tune_b.py"}


def test_renamed_file_loses_nothing(catalog: Catalog, files: list[Path]) -> None:
    """The kernels are the same: jobs of the old path are planned again, and nothing is removed."""
    catalog.apply_inspections([make_inspection(files[0], make_kernel(files[0]))])
    files[0].unlink()
    changes = catalog.apply_inspections([make_inspection(files[1], make_kernel(files[1]))], [str(files[0])])
    assert (changes.added, changes.changed, changes.replanned, changes.removed) == ((), (), ("p:gemm",), ())
    assert map_kernels_to_files(catalog) == {"gemm": "tune_b.py"}


def test_kernel_moves_between_files_of_one_save(catalog: Catalog, files: list[Path]) -> None:
    """In either order of inspection, the kernel exists once and without an error."""
    catalog.apply_inspections([make_inspection(files[1], make_kernel(files[1]), make_kernel(files[1], "add"))])
    changes = catalog.apply_inspections(
        [make_inspection(files[0], make_kernel(files[0])), make_inspection(files[1], make_kernel(files[1], "add"))]
    )
    assert (changes.removed, changes.errors) == ((), ())
    assert map_kernels_to_files(catalog) == {"gemm": "tune_a.py", "add": "tune_b.py"}


def test_dependents_by_file_and_directory(catalog: Catalog, tmp_path: Path, files: list[Path]) -> None:
    """A file concerns the kernels that read it, a directory those that read something in it."""
    header = tmp_path / "inc" / "x.h"
    catalog.apply_inspections(
        [make_inspection(files[0], make_kernel(files[0], stamps={str(header): "", str(files[0]): "00"}))]
    )
    for path in (header, header.parent, files[0]):
        assert catalog.find_dependents([str(path)]) == {str(files[0])}
    assert catalog.find_dependents([str(tmp_path)]) == {str(files[0]), str(tmp_path / PROJECT_FILE)}
    for path in (tmp_path / "in", tmp_path / "inc" / "x.hpp", files[1]):
        assert catalog.find_dependents([str(path)]) == set()


def test_each_directory_with_a_dependency_is_reported(catalog: Catalog, files: list[Path]) -> None:
    """It is reported until it has no dependency."""
    catalog.apply_inspections(
        [make_inspection(files[0], make_kernel(files[0], stamps={"/elsewhere/inc/x.h": "1", str(files[0]): "00"}))]
    )
    assert catalog.list_watched_directories() == {"/elsewhere/inc", str(files[0].parent)}
    catalog.apply_inspections([make_inspection(files[0], make_kernel(files[0], stamps={str(files[0]): "00"}))])
    assert catalog.list_watched_directories() == {str(files[0].parent)}


def test_root_that_is_dropped(catalog: Catalog, files: list[Path]) -> None:
    """Its kernels, errors and dependencies go with it, except those below another root."""
    catalog.apply_inspections([make_inspection(files[0], make_kernel(files[0], stamps={str(files[0]): "00"}))])
    (root,) = catalog.roots
    known = tuple(kernel.name for kernel in catalog.kernels)
    assert catalog.remove_root(root.path).removed == known
    assert (catalog.kernels, catalog.errors, catalog.list_watched_directories(), catalog.list_inspected_stamps()) == (
        [],
        [],
        set(),
        set(),
    )


def test_innermost_root_owns() -> None:
    """A path belongs to the longest root above it; a root must be a whole directory name."""
    roots = [Root(path, path, "python") for path in ("/", "/a", "/a/b")]
    catalog = Catalog(roots)
    owners = {path: catalog.find_root(path) for path in ("/a/b/tune_x.py", "/a/bc/tune_x.py", "/a", "/ab")}
    assert [root.path for root in owners.values() if root] == ["/a/b", "/a", "/a", "/"]
    assert Catalog(roots[1:]).find_root("/b") is None


@pytest.mark.parametrize(
    ("path", "directory", "expected"),
    [("/a/b", "/a", True), ("/a", "/a", True), ("/a/b", "/a/", True), ("/ab", "/a", False), ("/a", "/a/b", False)],
)
def test_a_directory_is_below_itself_and_its_parents(path: str, directory: str, expected: bool) -> None:
    assert is_below(path, directory) is expected


def test_a_short_name_resolves_while_it_is_the_only_one() -> None:
    """A full name always resolves; the error for an ambiguous short name lists the full ones."""
    roots = [Root("/a", "a", "python"), Root("/b", "b", "python")]
    both = [
        make_kernel("/a/tune_x.py", project="a"),
        make_kernel("/b/tune_x.py", project="b"),
        make_kernel("/b/tune_y.py", "add", "b"),
    ]
    catalog = Catalog(roots, both)
    assert catalog.resolve_kernel("add").name == "b:add"
    assert catalog.resolve_kernel("a:gemm").name == "a:gemm"
    for wrong, meant in (("ad", "'add'"), ("a:gem", "'a:gemm'")):
        with pytest.raises(NotFound) as caught:
            catalog.resolve_kernel(wrong)
        assert caught.value.hint.startswith(f"did you mean {meant}?")
    with pytest.raises(AmbiguousName) as ambiguous:
        catalog.resolve_kernel("gemm")
    assert "a:gemm, b:gemm" in ambiguous.value.hint
    for name in ("nothing", "b:nothing", "a:add", ""):
        with pytest.raises(NotFound):
            catalog.resolve_kernel(name)


def test_an_unknown_kernel_may_be_one_of_a_file_with_an_error(catalog: Catalog, files: list[Path]) -> None:
    """The file's error is named, not a kernel with a similar name; other misspelt names are still corrected."""
    wrong = make_inspection(files[1], errors=("SyntaxError: no",))
    catalog.apply_inspections([make_inspection(files[0], make_kernel(files[0], "ba")), wrong])
    for name in ("b", "p:b", "nothing"):
        with pytest.raises(NotFound) as caught:
            catalog.resolve_kernel(name)
        assert caught.value.hint == f"a kernel file has an error: {files[1]}:1: SyntaxError: no"
    with pytest.raises(NotFound, match="there is no kernel 'bax'"):
        catalog.resolve_kernel("bax")


def test_kernels_below_no_root_are_forgotten() -> None:
    """They disappear when their root is no longer configured."""
    assert Catalog([Root("/a", "a", "python")], [make_kernel("/b/tune_x.py")]).kernels == []


@pytest.mark.parametrize(
    ("problem", "options", "words"),
    [
        ({"M": 1, "N": 2}, {}, ""),
        ({"K": 1}, {}, ""),
        ({"M": 1}, {}, "it takes M, N, such as M=1,N=1"),
        ({"M": 1, "N": "2"}, {}, "give an integer, such as N=1"),
        ({"D": 2}, {"problems": ({"D": "half"},)}, "give a text, such as D=half"),
        ({}, {}, "the problem lacks M, N; it takes M, N"),
        ({"M": 1, "N": 2, "K": 3}, {}, "the problem does not take K; it takes M, N"),
        ({"M": [1], "N": 2}, {}, "the problem's M is a list"),
        ({"M": None, "N": 2}, {}, "the problem's M is a NoneType"),
        ({"M": float("nan"), "N": 2}, {}, "finite"),
        ({"X": 1}, {"problems": ()}, ""),
        ({"M": 1, "X": 1}, {"problems": (), "specialize": ("M",)}, ""),
        ({"X": 1}, {"problems": (), "specialize": ("M",)}, "it takes M"),
    ],
)
def test_a_problem_with_other_keys_is_refused(problem: Problem, options: dict[str, Any], words: str) -> None:
    """A problem has the keys of a declared one, or at least those of its key; the error has the names."""
    declared = {"problems": ({"M": 1, "N": 1}, {"K": 1}), **options}
    checked = make_kernel("/a/tune_x.py", **declared)
    if not words:
        read_problem(checked, problem)
        return
    with pytest.raises(UsageError) as refused:
        read_problem(checked, problem)
    assert words in f"{refused.value.message}; {refused.value.hint}"


@pytest.mark.parametrize(
    ("declared", "given", "read"),
    [
        (64, 65536.0, 65536),
        (0.5, 2, 2.0),
        (True, False, False),
        ("half", "float", "float"),
        (64, True, None),
        (64, 0.5, None),
        (True, 1, None),
        (0.5, True, None),
        (64, "64", None),
    ],
)
def test_a_value_takes_the_declared_type_or_is_refused(declared: Scalar, given: Scalar, read: Scalar | None) -> None:
    """``N=65536.0`` is the problem ``N=65536``, and ``N=True`` is none."""
    checked = make_kernel("/a/tune_x.py", problems=({"N": declared},))
    if read is None:
        with pytest.raises(UsageError, match=r"the problem's N is"):
            read_problem(checked, {"N": given})
    else:
        (value,) = read_problem(checked, {"N": given}).values()
        assert (type(value), value) == (type(declared), read)


def test_file_that_cannot_be_read_is_the_fault_of_the_kernels_it_lost(catalog: Catalog, files: list[Path]) -> None:
    """They stay, with the fault; kernels that it still declares have none, and the repair is reported."""
    gemm, add = make_kernel(files[0]), make_kernel(files[0], "add")
    catalog.apply_inspections([make_inspection(files[0], gemm, add)])
    assert catalog.apply_inspections([make_inspection(files[0], gemm, errors=("add is wrong",))]).mended == ()
    assert [catalog.find_file_fault(known) for known in (gemm, add)] == ["", "add is wrong"]
    catalog.apply_inspections([make_inspection(files[0], errors=("no syntax",))])
    assert [catalog.find_file_fault(known) for known in (gemm, add)] == ["no syntax", "no syntax"]
    changes = catalog.apply_inspections([make_inspection(files[0], gemm, add)])
    assert changes == Changes(inspected=("p:gemm", "p:add"), mended=(str(files[0]),))
    assert changes
    assert [catalog.find_file_fault(known) for known in (gemm, add)] == ["", ""]
    catalog.apply_inspections([make_inspection(files[0], errors=("no syntax",))])
    assert catalog.apply_inspections([], [str(files[0])]).mended == (str(files[0]),)
    assert catalog.find_file_fault(gemm) == ""


def test_a_short_name_means_the_checkout_that_one_works_in(tmp_path: Path) -> None:
    """Its projects may lie below the directory, as a repository's examples do."""
    places = [tmp_path / checkout / "examples" / "gemm" for checkout in ("one", "two")]
    for place in places:
        place.mkdir(parents=True)
    roots = [Root(str(place), name, "python") for place, name in zip(places, ("gemm", "gemm-two"), strict=True)]
    kernels = [make_kernel(place / "tune_x.py", project=root.name) for place, root in zip(places, roots, strict=True)]
    catalog = Catalog(roots, kernels)
    assert catalog.resolve_kernel("gemm", str(tmp_path / "two")).name == "gemm-two:gemm"
    assert catalog.resolve_kernel("gemm", str(tmp_path / "one" / "examples")).name == "gemm:gemm"
    with pytest.raises(AmbiguousName):
        catalog.resolve_kernel("gemm", str(tmp_path))


def test_a_short_name_means_the_project_that_one_works_in(tmp_path: Path) -> None:
    """The innermost project with the name decides; a full name needs none, and a removed project does not count."""
    places = [tmp_path / "a", tmp_path / "a" / "inner", tmp_path / "b"]
    for place in places:
        (place / "src").mkdir(parents=True)
    roots = [Root(str(place), place.name, "python") for place in places]
    catalog = Catalog(roots, [make_kernel(place / "tune_x.py", project=place.name) for place in places])
    for place in places:
        assert catalog.resolve_kernel("gemm", str(place / "src")).name == f"{place.name}:gemm"
        assert catalog.resolve_kernel("b:gemm", str(place)).name == "b:gemm"
    assert [other.name for other in catalog.find_namesakes(catalog.resolve_kernel("b:gemm"))] == [
        "a:gemm",
        "inner:gemm",
    ]
    deeper = tmp_path / "a" / "deeper"
    deeper.mkdir()
    catalog.add_root(Root(str(deeper), "deeper", "python"))
    assert catalog.resolve_kernel("gemm", str(deeper)).name == "a:gemm"
    for directory in (None, str(tmp_path), str(tmp_path / "missing")):
        with pytest.raises(AmbiguousName):
            catalog.resolve_kernel("gemm", directory)
    shutil.rmtree(places[0])
    assert catalog.resolve_kernel("gemm", str(tmp_path)).name == "b:gemm"
