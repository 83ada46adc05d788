"""Worktrees and clones of one project share winners while they hold the same code."""

import json
import os
import shutil
import site
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon_parts import FAKE_BACKEND
from tests.e2e.harness import UNHURRIED, Daemon

REPOSITORY = Path(__file__).parents[2]

FILE = f"""
from ktuned import kernel, space, tensor
from ktuned_fake import Build

@kernel(
    backend="fake", space=space([dict(us=300.0, tag="slow"), dict(us=60.0, tag="quick")]), problems=[dict(n=64)],
    inputs=lambda p: dict(x=tensor((p.n,)), y=tensor((p.n,), output=True)), reference=lambda x: dict(y=2 * x),
    deadlines={UNHURRIED}, preset="fast",
)
def it(p, c):
    return Build(**c)
"""


READING = FILE.replace("@kernel(", "import pathlib\n\n@kernel(").replace(
    "y=2 * x", "y=int(pathlib.Path(__file__).with_name('factor.txt').read_text()) * x"
)
"""Only a job shows that this kernel depends on ``factor.txt``."""


def test_checkouts_of_a_project_share_winners(tmp_path: Path) -> None:
    """A clone's first lookup gets the winner, and tuning it measures nothing; an edit affects one clone only."""
    with Daemon(tmp_path) as daemon:
        path = daemon.write_kernel(FILE)
        (path.parent / "ktuned.toml").write_text('name = "shared"\n')
        job = daemon.tune_one(path=path)
        clone = tmp_path / "clone"
        shutil.copytree(path.parent, clone)
        assert daemon.run_ktuned("add", str(clone)).returncode == 0
        hit = daemon.look_up("shared-clone:it")
        assert (hit.status, (hit.config or {})["tag"], hit.latency_us) == ("fresh", "quick", job["best_us"])
        assert len(daemon.client.call("jobs")["jobs"]) == 1

        # What another checkout has found is tried first, and gives way to nothing that is slower.
        daemon.tune(kernel="shared-clone:it", configs=[dict(us=300.0, tag="slow")])
        hit = daemon.look_up("shared-clone:it")
        assert (hit.status, (hit.config or {})["tag"]) == ("fresh", "quick")
        second = daemon.tune_one(kernel="shared-clone:it")
        assert (second["state"], second["best_us"]) == ("done", job["best_us"])
        details = [daemon.fetch_trial(trial["id"])["detail"]
                   for trial in daemon.client.call("results", kernel="shared-clone:it")["trials"]]  # fmt: skip
        assert all("carried_from" in detail["timing"] for detail in details)

        (clone / path.name).write_text(FILE.replace("2 * x", "x + x"))
        daemon.wait_until(lambda: daemon.look_up("shared-clone:it").status == "stale", "the edit")
        assert daemon.look_up("shared:it").status == "fresh"


def test_a_moved_project_keeps_its_winner_until_it_is_forgotten_in_one_place(tmp_path: Path) -> None:
    """The first lookup in the new place is fresh, although only a job shows a file; forgetting it holds for a clone."""
    with Daemon(tmp_path) as daemon:
        path = daemon.write_kernel(READING)
        path.with_name("factor.txt").write_text("2")
        daemon.tune(path=path)

        def look_up(name: str) -> str:
            status: str = daemon.client.call("lookup", kernel=f"{name}:it", problem={"n": 64}, tune=False)["status"]
            return status

        shutil.move(path.parent, tmp_path / "moved")
        daemon.wait_until(lambda: not daemon.client.call("kernels")["kernels"], "the move")
        assert daemon.run_ktuned("add", str(tmp_path / "moved")).returncode == 0
        assert look_up("moved") == "fresh"
        shutil.copytree(tmp_path / "moved", tmp_path / "clone")
        assert daemon.run_ktuned("add", str(tmp_path / "clone")).returncode == 0
        assert look_up("clone") == "fresh"
        assert "1 winner" in daemon.run_ktuned("forget", "clone:it").stdout
        assert [look_up(name) for name in ("moved", "clone")] == ["default", "default"]


def test_a_clone_learns_what_its_original_has_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A winner that depends on files which only a job shows is fresh in a clone at once; other content is no clone.

    An import in a clone goes to the clone's kernel, although the files name the original's.
    """
    with Daemon(tmp_path) as daemon:
        path = daemon.write_kernel(READING)
        path.with_name("factor.txt").write_text("2")
        daemon.tune(path=path)
        for name, factor in (("same", "2"), ("other", "3")):
            shutil.copytree(path.parent, tmp_path / name / "project")
            (tmp_path / name / "project/factor.txt").write_text(factor)
            assert daemon.run_ktuned("add", str(tmp_path / name / "project")).returncode == 0
        statuses = [
            daemon.client.call("lookup", kernel=f"{name}-project:it", problem={"n": 64}, tune=False)["status"]
            for name in ("same", "other")
        ]
        assert statuses == ["fresh", "default"]
        assert len(daemon.client.call("jobs")["jobs"]) == 1

        monkeypatch.chdir(path.parent)
        assert daemon.run_ktuned("export", "winners").returncode == 0
        monkeypatch.chdir(tmp_path / "other/project")
        imported = daemon.run_ktuned("import", str(path.parent / "winners"), "--json")
        (winner,) = json.loads(imported.stdout)["winners"]
        assert (winner["kernel"], winner["taken"], winner["status"]) == ("other-project:it", True, "stale")


READING_VERSION = READING.replace(
    "@kernel(", 'import importlib.metadata\n\nVERSION = importlib.metadata.version("ledger")\n\n@kernel('
)


def make_interpreter(place: Path) -> Path:
    """Make an environment with an installed distribution ``ledger``; what else workers need is on the path."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    (site,) = (place / "lib").glob("python*/site-packages")
    info = site / "ledger-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ledger\nVersion: 1.0\n")
    (info / "RECORD").write_text("ledger-1.0.dist-info/METADATA,,\nledger-1.0.dist-info/RECORD,,\n")
    return place / "bin" / "python"


def write_clone(place: Path, umask: int) -> Path:
    """Write the project as another user's checkout would have it."""
    place.mkdir(parents=True)
    for name, text in (("tune_it.py", READING_VERSION), ("factor.txt", "2"), ("ktuned.toml", 'name = "shared"\n')):
        (place / name).write_text(text)
        (place / name).chmod(0o666 & ~umask)
    return place


def test_winners_are_fresh_in_a_clone_of_another_user(tmp_path: Path) -> None:
    """Another depth, home and umask, and an interpreter outside the project: nothing of that is in the file."""
    sites = os.pathsep.join([*map(str, (FAKE_BACKEND, REPOSITORY, REPOSITORY / "client")), *site.getsitepackages()])
    users = []
    for name, depth in (("ann", "."), ("bob", "some/deeper/place")):
        directory = tmp_path / name
        (directory / "user").mkdir(parents=True)
        environment = {"HOME": str(directory / "user"), "USER": name, "PYTHONPATH": sites}
        users.append((directory, directory / depth / "shared", Daemon(directory, env=environment)))
    (_, first_clone, ann), (directory, second_clone, bob) = users
    write_clone(first_clone, 0o022)
    make_interpreter(first_clone / ".venv")
    write_clone(second_clone, 0o077)
    outside = make_interpreter(directory / "environments" / "pipx")
    files = tmp_path / "winners"
    with ann, bob:
        assert ann.run_ktuned("tune", str(first_clone)).returncode == 0
        assert ann.run_ktuned("export", "--all", str(files)).returncode == 0
        (file,) = files.iterdir()
        text = file.read_text()
        assert str(tmp_path) not in text
        assert "../" not in text
        assert '\n  "dist:ledger": ' in text
        assert '\n  "factor.txt": ["data"' in text
        bob.client.call("add", path=str(second_clone), python=str(outside))
        decisions = json.loads(bob.run_ktuned("import", "--json", str(files)).stdout)["winners"]
        assert [(one["taken"], one["status"]) for one in decisions] == [(True, "fresh")]
        assert bob.look_up().status == "fresh"

        # The entry that differs is named by the import, and by what is shown afterwards.
        (second_clone / "factor.txt").write_text("3")
        bob.wait_until(lambda: bob.look_up().status == "stale", "the edit")
        assert bob.run_ktuned("forget", "it").returncode == 0
        (decision,) = json.loads(bob.run_ktuned("import", "--json", str(files)).stdout)["winners"]
        assert (decision["taken"], decision["status"]) == (True, "stale")
        assert "factor.txt changed" in decision["reason"]
        assert "tune_it.py" not in decision["reason"]
        assert "factor.txt changed" in bob.run_ktuned("kernels", "it").stdout


def test_the_first_of_several_environments_decides(tmp_path: Path) -> None:
    """Packages lie in two directories, as in an environment on top of another: a module is absent in the first one."""
    sites = [tmp_path / name / "site-packages" for name in ("own", "below")]
    for site_directory in sites:
        site_directory.mkdir(parents=True)
    (sites[1] / "factors.py").write_text("TWO = 2\n")
    paths = os.pathsep.join([*map(str, sites), str(FAKE_BACKEND)])
    text = FILE.replace("@kernel(", "import factors\n\n@kernel(").replace("y=2 * x", "y=factors.TWO * x")
    with Daemon(tmp_path, env={"PYTHONPATH": paths}) as daemon:
        job = daemon.tune_one(path=daemon.write_kernel(text))
        assert job["state"] == "done", job

        def find_status() -> str:
            return str(daemon.look_up("project:it").status)

        assert find_status() == "fresh"
        (sites[0] / "factors.py").write_text("TWO = 1 + 1\n")
        daemon.wait_until(lambda: find_status() == "stale", "the notice of the nearer module")
        (sites[0] / "factors.py").unlink()
        daemon.wait_until(lambda: find_status() == "fresh", "the notice that it is gone")
