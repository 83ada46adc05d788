"""Whose code may run, by the owners and modes of real files."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from ktuned.ipc import Trust, Untrusted
from tests.e2e.harness import Daemon, make_kernel_text

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make files of another user")
OTHER_UID = 65534


@pytest.fixture
def kernel_path(tmp_path: Path) -> Path:
    """A kernel file of ours, two directories deep."""
    path = tmp_path / "project" / "kernels" / "tune_it.py"
    path.parent.mkdir(parents=True)
    path.write_text("")
    path.chmod(0o644)
    for directory in (path.parent, path.parent.parent):
        directory.chmod(0o755)
    return path


def test_our_own_file_is_trusted(kernel_path: Path) -> None:
    """A file that only we can write may be readable by everyone."""
    Trust().check_file(str(kernel_path))
    Trust().check_directory(str(kernel_path.parent))


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o702])
@pytest.mark.parametrize("level", ["tune_it.py", "kernels", "project"])
def test_a_file_that_others_can_write_is_not_trusted(kernel_path: Path, level: str, mode: int) -> None:
    """The message names the file or directory at fault, its mode, and the command that fixes it."""
    path = next(path for path in (kernel_path, *kernel_path.parents) if path.name == level)
    path.chmod(mode)
    with pytest.raises(Untrusted) as caught:
        Trust().check_file(str(kernel_path))
    assert caught.value.message.startswith(str(path))
    assert f"can be written by others (mode {mode:04o})" in caught.value.message
    assert f"chmod go-w {path}, or name the directory" in caught.value.hint


def test_of_many_files_each_is_checked(kernel_path: Path) -> None:
    """A file beside a checked file is checked, too; an absent file is skipped."""
    helper = kernel_path.with_name("helper.py")
    helper.write_text("")
    helper.chmod(0o644)
    paths = [str(kernel_path), str(helper), str(kernel_path.with_name("absent.py"))]
    Trust().check_files(paths)
    helper.chmod(0o666)
    with pytest.raises(Untrusted) as caught:
        Trust().check_files(paths)
    assert caught.value.message.startswith(str(helper))


def test_a_sticky_directory_is_trusted_on_the_way_only(kernel_path: Path) -> None:
    """In /tmp others cannot replace our files, but they can add a module or a kernel file beside them."""
    kernel_path.parent.parent.chmod(0o1777)
    Trust().check_file(str(kernel_path))
    kernel_path.parent.chmod(0o1777)
    with pytest.raises(Untrusted):
        Trust().check_file(str(kernel_path))
    with pytest.raises(Untrusted):
        Trust().check_directory(str(kernel_path.parent))


@needs_root
@pytest.mark.parametrize("level", ["tune_it.py", "kernels", "project"])
def test_another_users_file_is_not_trusted(kernel_path: Path, level: str) -> None:
    """Its owner could change it at any time, whatever its mode."""
    path = next(path for path in (kernel_path, *kernel_path.parents) if path.name == level)
    os.chown(path, OTHER_UID, -1)
    with pytest.raises(Untrusted, match=f"belongs to uid {OTHER_UID}, neither to you \\(0\\) nor to root"):
        Trust().check_file(str(kernel_path))


@needs_root
def test_a_file_that_a_shared_group_can_write_is_not_trusted(kernel_path: Path) -> None:
    """Write permission for root's group is harmless; for another group it is not."""
    kernel_path.chmod(0o664)
    Trust().check_file(str(kernel_path))
    os.chown(kernel_path, -1, 100)
    with pytest.raises(Untrusted, match="mode 0664"):
        Trust().check_file(str(kernel_path))


def test_each_step_that_a_link_leads_through_is_checked(kernel_path: Path, tmp_path: Path) -> None:
    """A link through a directory that others can write is untrusted; a link among our files is trusted."""
    trusted_link = kernel_path.with_name("tune_link.py")
    trusted_link.symlink_to(kernel_path)
    Trust().check_file(str(trusted_link))
    open_directory = tmp_path / "open"
    open_directory.mkdir()
    (open_directory / "hop").symlink_to(kernel_path)
    open_directory.chmod(0o777)
    untrusted_link = kernel_path.with_name("tune_bad.py")
    untrusted_link.symlink_to("../../open/hop")
    with pytest.raises(Untrusted, match="on the way to"):
        Trust().check_file(str(untrusted_link))


def test_a_loop_of_links_is_not_trusted(kernel_path: Path) -> None:
    loop = kernel_path.with_name("tune_loop.py")
    loop.symlink_to(loop)
    with pytest.raises(Untrusted, match="more than 40 links"):
        Trust().check_file(str(loop))


@needs_root
def test_another_users_link_is_not_trusted(kernel_path: Path) -> None:
    """The owner of a link in a sticky directory can change its target."""
    link = kernel_path.with_name("tune_link.py")
    link.symlink_to(kernel_path)
    os.chown(link, OTHER_UID, -1, follow_symlinks=False)
    with pytest.raises(Untrusted, match=f"belongs to uid {OTHER_UID}"):
        Trust().check_file(str(link))


def test_exceptions_are_trusted_unchecked(kernel_path: Path, tmp_path: Path) -> None:
    """An exception covers a directory and everything below it, but not a neighbour whose name starts equally."""
    kernel_path.chmod(0o666)
    Trust([str(kernel_path.parent.parent)]).check_file(str(kernel_path))
    (tmp_path / "link").symlink_to(kernel_path.parent)
    Trust([str(tmp_path / "link")]).check_file(str(kernel_path))
    with pytest.raises(Untrusted):
        Trust([str(kernel_path.parent)[:-1]]).check_file(str(kernel_path))


def test_a_daemon_runs_no_untrusted_file(tmp_path: Path) -> None:
    """The untrusted file is an error and is not imported; as an exception in the settings, it is tuned."""
    with Daemon(tmp_path) as daemon:
        proof = tmp_path / "ran"
        text = f"open({str(proof)!r}, 'w')\n" + make_kernel_text("space(us=[50.0], tag=['a'])")
        path = daemon.write_kernel(text)
        path.chmod(0o666)
        process = daemon.run_ktuned("tune", str(path))
        assert process.returncode == 1
        assert "can be written by others (mode 0666)" in process.stderr
        path.chmod(0o644)
        path.parent.chmod(0o777)
        process = daemon.run_ktuned("tune", str(path.parent))
        assert process.returncode == 1
        assert f"chmod go-w {path.parent}, or name the directory in config.toml" in process.stderr
        assert not proof.exists()
        (daemon.home / "config.toml").write_text(f"contention = false\ntrusted_directories = ['{path.parent}']\n")
        daemon.stop()
        daemon.start()
        daemon.tune(path=path, trials=1)
        assert proof.exists()


def write_acl(path: Path, *entries: tuple[int, int, int]) -> None:
    """Give a file a POSIX ACL: these (tag, permissions, id), and full permissions for its owner, group and mask."""
    nobody = 0xFFFFFFFF
    all_entries = sorted([(0x01, 7, nobody), *entries, (0x04, 7, nobody), (0x10, 7, nobody), (0x20, 0, nobody)])
    packed = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in all_entries)
    try:
        os.setxattr(path, "system.posix_acl_access", packed)
    except OSError as error:
        pytest.skip(f"the file system has no ACLs: {error}")


@needs_root
@pytest.mark.parametrize(("tag", "writer"), [(0x02, "user"), (0x08, "group")])
@pytest.mark.parametrize("level", ["tune_it.py", "kernels", "project"])
def test_a_file_that_an_acl_lets_others_write_is_not_trusted(
    kernel_path: Path, level: str, tag: int, writer: str
) -> None:
    """The mode shows the ACL's mask as the group's bits, although the group has no other members; an ACL that only
    allows reading is fine.
    """
    path = next(path for path in (kernel_path, *kernel_path.parents) if path.name == level)
    write_acl(path, (tag, 5, OTHER_UID))
    Trust().check_file(str(kernel_path))
    write_acl(path, (tag, 6, OTHER_UID))
    with pytest.raises(Untrusted, match=f"can be written by the {writer} {OTHER_UID}, by its ACL"):
        Trust().check_file(str(kernel_path))
    path.chmod(path.stat().st_mode & ~0o070)
    Trust().check_file(str(kernel_path))
