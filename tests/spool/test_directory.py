"""The directory of the spool: files are complete or absent, and only the user's own plain files are read."""

import errno
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ktuned.daemon.settings import load_settings
from ktuned.model import CallKey
from ktuned.spool import (
    COUNTS_SUFFIX,
    MAX_RECORDS,
    RECORD_SUFFIX,
    STAGED_PREFIX,
    CallRecord,
    KeyLaunches,
    LaunchCounts,
    RefusedFile,
    directory,
    leave_counts,
    leave_record,
    read_file,
    spool_directory,
)
from tests.spool.test_records import RECORD

PROCESSES = 32


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """Return a spool that does not exist yet."""
    return tmp_path / "home" / "spool"


def start_child(work: Callable[[], None]) -> int:
    """Run a function in a child that ends without exit handlers; return its pid."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except OSError as error:
            os._exit(error.errno or 1)
        except BaseException:
            os._exit(255)
        os._exit(0)
    return child


def wait_for_child(child: int) -> int:
    """Wait for a child and return its exit status."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class TestRecords:
    def test_a_record_is_read_as_it_was_left(self, spool: Path) -> None:
        """The directory is created with access for its user alone."""
        name = leave_record(spool, RECORD)
        assert name.endswith(RECORD_SUFFIX)
        assert CallRecord.from_bytes(read_file(spool / name)) == RECORD
        assert [path.stat().st_mode & 0o777 for path in (spool, spool / name)] == [0o700, 0o600]

    def test_an_equal_record_is_written_once(self, spool: Path) -> None:
        """A different record is written beside it."""
        before = spool / leave_record(spool, RECORD)
        status = before.stat()
        assert spool / leave_record(spool, RECORD) == before
        assert before.stat() == status
        leave_record(spool, replace(RECORD, device=""))
        assert len(list(spool.iterdir())) == 2

    def test_many_processes_write_one_file(self, spool: Path) -> None:
        """They write the same record at the same time, and leave nothing else."""
        gate_read, gate_write = os.pipe()

        def work() -> None:
            os.close(gate_write)
            os.read(gate_read, 1)
            leave_record(spool, RECORD)

        children = [start_child(work) for _ in range(PROCESSES)]
        os.close(gate_read)
        os.close(gate_write)
        assert [wait_for_child(child) for child in children] == [0] * PROCESSES
        (path,) = spool.iterdir()
        assert CallRecord.from_bytes(read_file(path)) == RECORD

    def test_a_killed_process_leaves_no_partial_record(self, spool: Path) -> None:
        records = [replace(RECORD, files={"tensors": bytes(1 << 20)}, call=str(number)) for number in range(200)]

        def work() -> None:
            for record in records:
                leave_record(spool, record)

        for milliseconds in range(1, 20, 2):
            child = start_child(work)
            signal.sigtimedwait([], milliseconds / 1000)
            os.kill(child, signal.SIGKILL)
            wait_for_child(child)
            for path in spool.glob(f"*{RECORD_SUFFIX}"):
                CallRecord.from_bytes(read_file(path))

    def test_a_full_spool_refuses_new_records(self, spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """An equal record is no error."""
        assert MAX_RECORDS >= 1000
        monkeypatch.setattr(directory, "MAX_RECORDS", 3)
        records = [replace(RECORD, device=str(number)) for number in range(4)]
        for record in records[:3]:
            leave_record(spool, record)
        with pytest.raises(OSError, match=r"3 calls wait in .*; start a daemon") as raised:
            leave_record(spool, records[3])
        assert raised.value.errno == errno.EDQUOT
        leave_record(spool, records[0])
        assert len(list(spool.iterdir())) == 3

    def test_staged_files_of_killed_processes_do_not_count(self, spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A daemon removes them."""
        monkeypatch.setattr(directory, "MAX_RECORDS", 3)
        spool.mkdir(parents=True)
        for number in range(5):
            (spool / f"{STAGED_PREFIX}{number}").touch()
        assert (spool / leave_record(spool, RECORD)).is_file()

    def test_a_record_too_large_to_be_read_is_refused(self, spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The application gets the error, not a daemon later."""
        monkeypatch.setattr(directory, "MAX_RECORD_BYTES", 1000)
        with pytest.raises(OSError, match=r"the call has [0-9]+ bytes, and at most 1000 are read") as raised:
            leave_record(spool, replace(RECORD, call="x" * 1000))
        assert raised.value.errno == errno.EFBIG
        assert not spool.exists() or not list(spool.iterdir())

    def test_a_write_without_disk_space_leaves_nothing(self, spool: Path) -> None:
        """Other records stay."""
        first = spool / leave_record(spool, RECORD)

        def work() -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
            leave_record(spool, replace(RECORD, files={"tensors": bytes(100_000)}))

        assert wait_for_child(start_child(work)) == errno.EFBIG
        assert list(spool.iterdir()) == [first]
        assert CallRecord.from_bytes(read_file(first)) == RECORD

    def test_a_full_disk_leaves_no_file(self, tmp_path: Path) -> None:
        """A real file system of 64 KiB."""
        code = f"""if True:
            import sys
            from pathlib import Path
            from dataclasses import replace
            from ktuned.spool import CallRecord, leave_record, read_file
            from tests.spool.test_records import RECORD
            spool = Path({str(tmp_path)!r}) / "disk" / "spool"
            first = leave_record(spool, RECORD)
            try:
                leave_record(spool, replace(RECORD, files={{"tensors": bytes(100_000)}}))
            except OSError as error:
                print(error.errno, [path.name for path in spool.iterdir()] == [first])
            print(CallRecord.from_bytes(read_file(spool / first)) == RECORD)
        """
        disk = tmp_path / "disk"
        disk.mkdir()
        mounted = f'mount -t tmpfs -o size=64k tmpfs {disk} && exec "$0" "$@"'
        paths = os.pathsep.join(filter(None, sys.path))
        done = subprocess.run(
            ["unshare", "--map-root-user", "--mount", "sh", "-c", mounted, sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        if "unshare:" in done.stderr or "mount:" in done.stderr:
            pytest.skip(f"no name space of its own here: {done.stderr.strip()}")
        assert done.stdout.splitlines() == [f"{errno.ENOSPC} True", "True"], done.stderr

    def test_a_file_in_place_of_the_spool_raises_the_system_s_error(self, tmp_path: Path) -> None:
        (tmp_path / "home").write_text("")
        with pytest.raises(OSError, match=r"Not a directory|File exists"):
            leave_record(spool_directory(tmp_path / "home"), RECORD)


class TestCounts:
    """A file of counts is never merged with another one, because a daemon adds them up."""

    def test_equal_counts_are_two_files(self, spool: Path) -> None:
        counts = LaunchCounts((KeyLaunches(CallKey("0123456789abcdef", {"size": 1}), 3),))
        for _ in range(2):
            leave_counts(spool, counts)
        files = list(spool.glob(f"*{COUNTS_SUFFIX}"))
        assert [LaunchCounts.from_bytes(read_file(path)) for path in files] == [counts, counts]

    def test_a_full_spool_refuses_counts(self, spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A machine without a daemon does not fill its disk."""
        monkeypatch.setattr(directory, "MAX_RECORDS", 2)
        for _ in range(2):
            leave_counts(spool, LaunchCounts(()))
        with pytest.raises(OSError, match="2 calls wait"):
            leave_counts(spool, LaunchCounts(()))


class TestRefusedFiles:
    """Spool files are untrusted: each kind is refused by name, and reading never blocks."""

    @pytest.fixture
    def path(self, spool: Path) -> Path:
        """Return a path in the spool."""
        spool.mkdir(parents=True)
        return spool / f"0123456789abcdef{RECORD_SUFFIX}"

    def test_a_link_is_refused(self, path: Path, tmp_path: Path) -> None:
        """The link leads to a record, to nothing, or to itself."""
        target = tmp_path / "target"
        target.write_bytes(RECORD.to_bytes())
        for linked in (target, tmp_path / "missing", path):
            path.symlink_to(linked)
            with pytest.raises(RefusedFile, match="it is a link"):
                read_file(path)
            path.unlink()

    def test_a_file_with_a_second_name_is_refused(self, path: Path, tmp_path: Path) -> None:
        """The owner of the other name could change the file while it is read."""
        path.write_bytes(RECORD.to_bytes())
        (tmp_path / "other").hardlink_to(path)
        with pytest.raises(RefusedFile, match="it has a second hard link"):
            read_file(path)

    def test_a_fifo_is_refused(self, path: Path) -> None:
        os.mkfifo(path)
        with pytest.raises(RefusedFile, match="it is not a plain file"):
            read_file(path)

    def test_a_directory_is_refused(self, path: Path) -> None:
        path.mkdir()
        with pytest.raises(RefusedFile, match="it is not a plain file"):
            read_file(path)

    def test_a_socket_is_refused(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(path.parent)
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(path.name)
            with pytest.raises(RefusedFile, match="it cannot be read: No such device or address"):
                read_file(path)

    def test_a_device_is_refused(self, path: Path) -> None:
        """A device has no end."""
        if os.geteuid() != 0:
            pytest.skip("only root makes devices")
        try:
            os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))
        except PermissionError:
            pytest.skip("this container makes no devices")
        with pytest.raises(RefusedFile, match=r"it is not a plain file|it cannot be read"):
            read_file(path)

    def test_another_users_file_is_refused(self, path: Path) -> None:
        """Its code would run as this user."""
        if os.geteuid() != 0:
            pytest.skip("only root gives files away")
        path.write_bytes(RECORD.to_bytes())
        os.chown(path, 12345, -1)
        with pytest.raises(RefusedFile, match="it belongs to the user 12345"):
            read_file(path)

    def test_a_large_file_is_refused(self, path: Path) -> None:
        """It is not read at all."""
        with path.open("wb") as file:
            file.truncate((80 << 20) + 1)
        with pytest.raises(RefusedFile, match="it has 83886081 bytes, and at most 83886080 are read"):
            read_file(path)

    def test_a_missing_file_is_not_found(self, path: Path) -> None:
        """Another daemon may have taken it."""
        with pytest.raises(FileNotFoundError):
            read_file(path)


@pytest.mark.parametrize(
    ("environment", "home"),
    [
        ({"KTUNED_HOME": "/chosen"}, "/chosen"),
        ({"KTUNED_HOME": "", "XDG_STATE_HOME": "/state"}, "/state/ktuned"),
        ({"XDG_STATE_HOME": " "}, "~/.local/state/ktuned"),
        ({}, "~/.local/state/ktuned"),
    ],
    ids=["chosen", "state", "blank", "none"],
)
def test_an_application_and_the_daemon_use_the_same_home(
    environment: dict[str, str], home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Path(os.path.expanduser(home))
    for name in ("KTUNED_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert spool_directory() == load_settings().state / "spool" == found / "spool"
