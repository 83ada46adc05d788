"""Files behind symbolic links, and modules that are gone."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from ktuned.ipc import Places, make_absolute, requests
from ktuned.ipc.stamps import follow_links, stamp_files
from ktuned.model.kernel import KernelInfo
from ktuned.worker.inspect import Inspector
from tests.declaration.conftest import Project
from tests.worker.reply_collector import ReplyCollector

KERNEL_WITH_FLAGS = """
@dataclass(frozen=True)
class Flagged(Build):
    backend = "fake"
    flags: tuple = ()

@kernel(backend="fake", sources=["one.cc"], space=space(BM=[1, 2]), problems=[dict(M=4)],
        inputs=lambda p: dict(A=tensor(3)), check=None)
def one(p, c):
    return Flagged(("-O3", "-Iinclude", "-isystem", "vendor"))
"""


class FakeRegistry:
    """The registry of an interpreter with one backend."""

    names = ("fake",)

    def load(self, name: str) -> FakeRegistry:
        return self

    def for_sources(self, sources: object) -> str:
        return "fake"


def inspect_kernel(project: Project, name: str = "tune_it.py") -> KernelInfo:
    """Inspect a file as a worker does and return its only kernel."""
    reply = ReplyCollector()
    root = str(project.root)
    places = Places({"project": root}, "", "")
    Inspector(FakeRegistry(), places).inspect_files(requests.Inspect("project", (name,)), reply)  # type: ignore[arg-type]
    (item,) = reply.items
    assert item.errors == ()
    (kernel,) = item.kernels
    assert isinstance(kernel, KernelInfo)
    stamps = {make_absolute(path, root): digest for path, digest in kernel.stamps.items()}
    return replace(kernel, file=make_absolute(kernel.file, root), stamps=stamps)


def test_a_linked_source_is_stamped_at_both_ends(project: Project, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A source behind links counts by its text; a change of a link or of the file behind it is noticed."""
    elsewhere = tmp_path_factory.mktemp("elsewhere").resolve()
    (elsewhere / "real.cc").write_text("int f();\n")
    (elsewhere / "middle.cc").symlink_to("real.cc")
    link = project.root / "one.cc"
    link.symlink_to(elsewhere / "middle.cc")
    project.write_file("tune_it.py", KERNEL_WITH_FLAGS)
    before = inspect_kernel(project)
    assert {str(link), str(elsewhere / "middle.cc"), str(elsewhere / "real.cc")} <= set(before.stamps)
    (elsewhere / "real.cc").write_text("long f();\n")
    edited = inspect_kernel(project)
    assert edited.source_digest != before.source_digest
    link.unlink()
    link.write_text("int f();\n")
    assert inspect_kernel(project).source_digest == before.source_digest


def test_linked_kernel_files_and_directories_belong_to_the_project(
    project: Project, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A linked kernel file and a module in a linked directory are followed like files inside the project."""
    elsewhere = Project(tmp_path_factory.mktemp("elsewhere").resolve())
    elsewhere.write_file("lib/deep.py", "def rows(p):\n    return p.M\n")
    declared = "@kernel(backend='fake', space=space(A=[1]), problems=[dict(M=1)], check=None,\n"
    declared += "        inputs=lambda p: dict(A=tensor(rows(p))))\ndef it(p, c):\n    return Fake(c.A)\n"
    elsewhere.write_file("tune_far.py", f"from lib.deep import rows\n{declared}")
    (project.root / "lib").symlink_to(elsewhere.root / "lib")
    (project.root / "tune_far.py").symlink_to(elsewhere.root / "tune_far.py")
    before = inspect_kernel(project, "tune_far.py")
    assert before.file == str(project.root / "tune_far.py")
    assert "lib/deep.py" in before.python_parts
    elsewhere.write_file("lib/deep.py", "def rows(p):\n    return p.M + 1\n")
    after = inspect_kernel(project, "tune_far.py")
    assert after.digest != before.digest
    elsewhere.write_file("tune_far.py", f"from lib.deep import rows\n{declared.replace('c.A', 'c.A + 1')}")
    assert inspect_kernel(project, "tune_far.py").source_digest != after.source_digest


def test_following_a_circle_of_links_ends(tmp_path: Path) -> None:
    """Links that point to each other are followed a bounded number of times."""
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert len(list(follow_links(tmp_path / "a"))) < 50
    assert set(stamp_files([tmp_path / "a"]).values()) == {""}


def test_a_removed_module_is_an_import_error(project: Project) -> None:
    """The module's package has no ``__init__.py``."""
    module = project.write_file("lib/deep.py", "def rows(p):\n    return p.M\n")
    project.write_file(
        "tune_it.py", "from lib import deep\n" + KERNEL_WITH_FLAGS.replace("tensor(3)", "tensor(deep.rows(p))")
    )
    project.write_file("one.cc", "int f();\n")
    assert project.load_file().errors == ()
    module.unlink()
    (error,) = project.load_file().errors
    assert "deep" in error.message
