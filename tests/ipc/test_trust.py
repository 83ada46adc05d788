"""Whose code may run: real files with real owners and modes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ktuned.ipc import Trust, Untrusted
from tests.e2e.harness import Daemon, make_kernel_text

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make files of another user")
SOMEBODY = 65534


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    """Return a kernel file of ours, two directories deep."""
    path = tmp_path / "project" / "kernels" / "tune_it.py"
    path.parent.mkdir(parents=True)
    path.write_text("")
    path.chmod(0o644)
    for directory in (path.parent, path.parent.parent):
        directory.chmod(0o755)
    return path


def test_our_own_file_is_trusted(kernel: Path) -> None:
    """What only we can write may be read by everyone."""
    Trust().check_file(str(kernel))
    Trust().check_directory(str(kernel.parent))


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o702])
@pytest.mark.parametrize("level", ["tune_it.py", "kernels", "project"])
def test_a_file_that_others_can_write_is_not_trusted(kernel: Path, level: str, mode: int) -> None:
    """The file, its directory and those above it: each is named with its mode and the command that mends it."""
    place = next(place for place in (kernel, *kernel.parents) if place.name == level)
    place.chmod(mode)
    with pytest.raises(Untrusted) as caught:
        Trust().check_file(str(kernel))
    assert caught.value.message.startswith(str(place))
    assert f"can be written by others (mode {mode:04o})" in caught.value.message
    assert f"chmod go-w {place}, or name the directory" in caught.value.hint


def test_of_many_files_each_is_checked(kernel: Path) -> None:
    """A file beside one that was checked is checked itself; one that is not there is none."""
    helper = kernel.with_name("helper.py")
    helper.write_text("")
    helper.chmod(0o644)
    paths = [str(kernel), str(helper), str(kernel.with_name("absent.py"))]
    Trust().check_files(paths)
    helper.chmod(0o666)
    with pytest.raises(Untrusted) as caught:
        Trust().check_files(paths)
    assert caught.value.message.startswith(str(helper))


def test_a_sticky_directory_is_trusted_on_the_way_only(kernel: Path) -> None:
    """In /tmp others cannot replace what is ours; but they can put a module beside it, or a kernel file."""
    kernel.parent.parent.chmod(0o1777)
    Trust().check_file(str(kernel))
    kernel.parent.chmod(0o1777)
    with pytest.raises(Untrusted):
        Trust().check_file(str(kernel))
    with pytest.raises(Untrusted):
        Trust().check_directory(str(kernel.parent))


@as_root
@pytest.mark.parametrize("level", ["tune_it.py", "kernels", "project"])
def test_another_users_file_is_not_trusted(kernel: Path, level: str) -> None:
    """Its owner could change it at any time, whatever its mode."""
    place = next(place for place in (kernel, *kernel.parents) if place.name == level)
    os.chown(place, SOMEBODY, -1)
    with pytest.raises(Untrusted, match=f"belongs to uid {SOMEBODY}, neither to us \\(0\\) nor to root"):
        Trust().check_file(str(kernel))


@as_root
def test_a_file_that_a_shared_group_can_write_is_not_trusted(kernel: Path) -> None:
    """Write permission of root's group harms no one; that of another one does."""
    kernel.chmod(0o664)
    Trust().check_file(str(kernel))
    os.chown(kernel, -1, 100)
    with pytest.raises(Untrusted, match="mode 0664"):
        Trust().check_file(str(kernel))


def test_each_step_that_a_link_leads_through_is_checked(kernel: Path, tmp_path: Path) -> None:
    """A link into a directory that others can write is as bad as the directory; one among ours is good."""
    good = kernel.with_name("tune_link.py")
    good.symlink_to(kernel)
    Trust().check_file(str(good))
    open_place = tmp_path / "open"
    open_place.mkdir()
    (open_place / "hop").symlink_to(kernel)
    open_place.chmod(0o777)
    bad = kernel.with_name("tune_bad.py")
    bad.symlink_to("../../open/hop")
    with pytest.raises(Untrusted, match="on the way to"):
        Trust().check_file(str(bad))


def test_a_loop_of_links_is_not_trusted(kernel: Path) -> None:
    """It is refused, and no one turns in circles."""
    loop = kernel.with_name("tune_loop.py")
    loop.symlink_to(loop)
    with pytest.raises(Untrusted, match="more than 40 links"):
        Trust().check_file(str(loop))


@as_root
def test_another_users_link_is_not_trusted(kernel: Path) -> None:
    """Who owns a link in a sticky directory can point it elsewhere."""
    link = kernel.with_name("tune_link.py")
    link.symlink_to(kernel)
    os.chown(link, SOMEBODY, -1, follow_symlinks=False)
    with pytest.raises(Untrusted, match=f"belongs to uid {SOMEBODY}"):
        Trust().check_file(str(link))


def test_exceptions_are_trusted_unchecked(kernel: Path, tmp_path: Path) -> None:
    """A named directory and all below it; a neighbour with a longer name is none of it."""
    kernel.chmod(0o666)
    Trust([str(kernel.parent.parent)]).check_file(str(kernel))
    (tmp_path / "link").symlink_to(kernel.parent)
    Trust([str(tmp_path / "link")]).check_file(str(kernel))
    with pytest.raises(Untrusted):
        Trust([str(kernel.parent)[:-1]]).check_file(str(kernel))


def test_a_daemon_runs_no_untrusted_file(tmp_path: Path) -> None:
    """A file that others can write is an error line, and not imported; named in the settings, it is tuned."""
    with Daemon(tmp_path) as daemon:
        ran = tmp_path / "ran"
        text = f"open({str(ran)!r}, 'w')\n" + make_kernel_text("space(us=[50.0], tag=['a'])")
        path = daemon.write_kernel(text)
        path.chmod(0o666)
        refused = daemon.run_ktuned("tune", str(path))
        assert refused.returncode == 1
        assert "can be written by others (mode 0666)" in refused.stderr
        path.chmod(0o644)
        path.parent.chmod(0o777)
        refused = daemon.run_ktuned("tune", str(path.parent))
        assert refused.returncode == 1
        assert f"chmod go-w {path.parent}, or name the directory in config.toml" in refused.stderr
        assert not ran.exists()
        (daemon.home / "config.toml").write_text(f"contention = false\ntrusted_directories = ['{path.parent}']\n")
        assert daemon.process is not None
        daemon.process.send_signal(1)
        daemon.wait_until(lambda: "config_reloaded" in daemon.log.read_text(), "the reload")
        daemon.tune(path=str(path), trials=1)
        assert ran.exists()
