"""What every storage promises, by real servers: objects by name, whole or not at all."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic
from urllib.parse import unquote

import anyio
import anyio.lowlevel
import msgspec
import pytest

from ktuned.sharing import ShareSettings, hide_secrets
from ktuned_team.calls import Fetched, FetchObjects, FindWinners, Listing, Object
from ktuned_team.directory_storage import MAX_HANGING, DirectoryStorage
from ktuned_team.objects import ObjectName
from ktuned_team.service import TeamStorage
from ktuned_team.storage import Storage, StorageError, make_storage_error, open_storage
from tests.assembled import PATIENCE_S
from tests.team.conftest import Server

pytestmark = pytest.mark.anyio


@pytest.fixture
def url(store: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of an empty storage of each kind."""
    for name, value in store.env.items():
        monkeypatch.setenv(name, value)
    return store.url


@pytest.fixture
async def storage(url: str) -> AsyncIterator[Storage]:
    """Return an empty storage of each kind."""
    opened = open_storage(url, deadline_s=PATIENCE_S)
    yield opened
    await opened.close()


async def test_an_object_is_read_as_it_was_written(storage: Storage) -> None:
    """Bytes of any kind come back as they were; what is not there is nothing."""
    data = bytes(range(256)) * 100
    await storage.write("v1/winners/k/a", data)
    assert await storage.read("v1/winners/k/a", len(data)) == data
    assert await storage.read("v1/winners/k/b", 10) is None


async def test_a_reader_takes_no_more_than_its_limit(storage: Storage) -> None:
    """One byte more shows that there is more."""
    await storage.write("v1/winners/k/a", b"x" * 1000)
    assert await storage.read("v1/winners/k/a", 10) == b"x" * 11


async def test_a_listing_has_all_objects_of_its_prefix_and_no_others(storage: Storage) -> None:
    """Names, sizes and times of one kernel, however many pages they take; not those of its neighbours."""
    names = {f"v1/winners/k/{number:04}" for number in range(1_050)}
    limiter = anyio.CapacityLimiter(16)

    async def write(name: str) -> None:
        async with limiter:
            await storage.write(name, name.encode())

    async with anyio.create_task_group() as tasks:
        for name in (*names, "v1/winners/k-2/a", "v1/winners/j/a"):
            tasks.start_soon(write, name)
    found = await storage.list_entries("v1/winners/k/")
    assert {entry.name for entry in found} == names
    assert {entry.size for entry in found} == {len("v1/winners/k/0000")}
    assert len(await storage.list_entries("v1/")) == 1_052
    assert await storage.list_entries("v1/winners/none/") == []
    assert max(entry.modified for entry in found) - min(entry.modified for entry in found) < PATIENCE_S


async def test_a_rewrite_replaces_a_damaged_object(storage: Storage) -> None:
    """The whole one takes the place of what was cut off, and is listed once."""
    await storage.write("v1/winners/k/a", b"who")
    await storage.write("v1/winners/k/a", b"whole")
    assert await storage.read("v1/winners/k/a", 10) == b"whole"
    assert [entry.name for entry in await storage.list_entries("v1/")] == ["v1/winners/k/a"]


async def test_a_removed_object_is_gone(storage: Storage) -> None:
    """From the listing, too; twice is no error."""
    for name in ("v1/winners/k/a", "v1/winners/k/b"):
        await storage.write(name, b"x")
    for _ in range(2):
        await storage.remove("v1/winners/k/a")
    assert await storage.read("v1/winners/k/a", 10) is None
    assert [entry.name for entry in await storage.list_entries("v1/")] == ["v1/winners/k/b"]


WRITER = """
import anyio, sys
from ktuned_team.storage import open_storage

async def main():
    storage = open_storage(sys.argv[1])
    for number in range(int(sys.argv[3])):
        await storage.write(f"v1/winners/k/{number % 50}", bytes([number % 50]) * 50_000)
        if not number:
            print("began", flush=True)

anyio.run(main)
"""


@pytest.fixture
def writers(url: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Run two processes that write the same names."""
    command = [sys.executable, "-c", WRITER, url, "", "2000"]
    found = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    yield found
    for writer in found:
        writer.kill()
        writer.communicate()


async def test_two_writers_and_their_deaths_leave_whole_objects(
    url: str, storage: Storage, writers: list[subprocess.Popen[str]]
) -> None:
    """`kill -9` of both in the middle: each name has all its bytes, or is not there."""
    for writer in writers:
        assert writer.stdout is not None
        assert await anyio.to_thread.run_sync(writer.stdout.readline) == "began\n"
    seen = 0
    for round_ in range(6):
        if round_ == 3:
            for writer in writers:
                writer.send_signal(signal.SIGKILL)
                writer.wait(PATIENCE_S)
        for entry in await storage.list_entries("v1/winners/k/"):
            if ".staged-" in entry.name:
                continue
            seen += 1
            number = int(entry.name.rpartition("/")[2])
            assert await storage.read(entry.name, 100_000) == bytes([number]) * 50_000
    assert seen


@pytest.mark.parametrize("store", ["redis"], indirect=True)
async def test_a_full_store_is_an_error_of_one_line(storage: Storage) -> None:
    """What was there stays readable."""
    await storage.write("v1/winners/k/first", b"first")

    async def fill() -> None:
        for number in range(100):
            await storage.write(f"v1/winners/k/{number}", os.urandom(200_000))

    with pytest.raises(StorageError, match=r"writing v1/winners/k/\d+: .*maxmemory"):
        await fill()
    assert await storage.read("v1/winners/k/first", 10) == b"first"


@pytest.mark.parametrize("scheme", ["s3", "redis"])
async def test_a_server_that_does_not_answer_is_an_error_in_time(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes connections and says nothing holds a call up for its deadline, and no longer."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"127.0.0.1:{silent.getsockname()[1]}"
        for name, value in (("ENDPOINT_URL", f"http://{place}"), ("ACCESS_KEY_ID", "a"), ("SECRET_ACCESS_KEY", "b")):
            monkeypatch.setenv(f"AWS_{name}", value)
        storage = open_storage("s3://team/x" if scheme == "s3" else f"redis://me:secret@{place}/0", deadline_s=0.3)
        began = monotonic()
        with pytest.raises(StorageError) as caught:
            await storage.list_entries("v1/")
        assert monotonic() - began < 10.0
        assert "secret" not in caught.value.message
        await storage.close()


@pytest.mark.parametrize("scheme", ["s3", "redis"])
async def test_a_server_that_is_not_there_is_an_error(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing listens there."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        place = f"127.0.0.1:{closed.getsockname()[1]}"
    for name, value in (("ENDPOINT_URL", f"http://{place}"), ("ACCESS_KEY_ID", "a"), ("SECRET_ACCESS_KEY", "b")):
        monkeypatch.setenv(f"AWS_{name}", value)
    storage = open_storage("s3://team/x" if scheme == "s3" else f"redis://{place}/0", deadline_s=PATIENCE_S)
    with pytest.raises(StorageError):
        await storage.write("v1/winners/k/a", b"x")
    await storage.close()


def test_an_error_of_object_storage_names_its_cause() -> None:
    """What a server answers is not lost behind the request."""
    request = f"Error performing GET http://127.0.0.1/team?prefix={'x' * 400} in 2.1ms, after 2 retries - "
    answer = '<?xml version="1.0"?><Error><Code>ExpiredToken</Code><Message>It has expired.</Message></Error>'
    error = OSError(
        f"Generic S3 error: {request}Server returned non-2xx status code: 400: {answer} Debug source: Generic"
    )
    words = "s3://team: listing it: Generic S3 error: Server returned non-2xx status code: 400: ExpiredToken: It has"
    assert make_storage_error(error, "listing it", "s3://team").message == f"{words} expired."


async def test_a_directory_that_is_not_mounted_is_not_made(tmp_path: Path) -> None:
    """Its error says so; nothing is written beside the mount."""
    storage = DirectoryStorage(str(tmp_path / "share"))
    with pytest.raises(StorageError, match="it does not exist") as caught:
        await storage.write("v1/winners/k/a", b"x")
    assert caught.value.hint == "make it, or mount what belongs there"
    assert not (tmp_path / "share").exists()


async def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    """It would seem to be an empty one, for ever."""
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="is no directory"):
        await DirectoryStorage(str(tmp_path / "file")).list_entries("v1/")
    assert ShareSettings("file://srv/team").find_fault().endswith("give a full path: file:///srv/team")


async def test_objects_in_a_directory_have_its_rights(tmp_path: Path) -> None:
    """Members of a group read each other's, whatever the daemon's umask."""
    tmp_path.chmod(0o2770)
    before = os.umask(0o077)
    try:
        await DirectoryStorage(str(tmp_path)).write("v1/winners/k/a", b"x")
    finally:
        os.umask(before)
    assert (tmp_path / "v1/winners/k").stat().st_mode & 0o7777 == 0o2770
    assert (tmp_path / "v1/winners/k/a").stat().st_mode & 0o7777 == 0o660


async def test_links_and_pipes_in_a_directory_are_not_followed(tmp_path: Path) -> None:
    """Others may write there: a link leads nowhere, and a pipe is not waited at."""
    (tmp_path / "v1").mkdir()
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "v1/link").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "v1/pipe")
    storage = DirectoryStorage(str(tmp_path), deadline_s=5.0)
    assert await storage.list_entries("v1/") == []
    with pytest.raises(StorageError):
        await storage.read("v1/link", 10)
    assert not await storage.read("v1/pipe", 10)


@pytest.mark.parametrize("store", ["directory", "redis"], indirect=True)
async def test_an_object_that_cannot_be_read_hides_no_others(url: str, storage: Storage, tmp_path: Path) -> None:
    """A value of another type, a link in its place: it is named, and the rest is fetched."""
    names = [f"v1/winners/k/{number}" for number in range(3)]
    for name in names:
        await storage.write(name, b"whole")
    if url.startswith("file"):
        place = tmp_path / "store" / names[1]
        place.unlink()
        place.symlink_to(tmp_path)
    else:
        import redis

        with redis.Redis.from_url(url) as client:
            client.delete(f"ktuned:{names[1]}")
            client.lpush(f"ktuned:{names[1]}", "x")
    sent: list[str] = []

    async def send(item: msgspec.Struct) -> None:
        assert isinstance(item, Object)
        sent.append(item.name)

    service = TeamStorage(lambda _: storage)
    fetched = await service.carry_out(FetchObjects(url, (*names, "v1/winners/k/none"), 100), send)
    assert isinstance(fetched, Fetched)
    assert (sorted(sent), fetched.missing) == ([names[0], names[2]], ("v1/winners/k/none",))
    (reason,) = fetched.unreadable
    assert f"reading {names[1]}: " in reason


async def test_the_newest_winners_are_found_by_address(url: str, storage: Storage) -> None:
    """However many others there are, and however many addresses are asked for: only they cross to the daemon."""

    async def never(item: msgspec.Struct) -> None:
        raise AssertionError(item)

    def name(address: int, number: int) -> str:
        return ObjectName("k", f"{address:032x}", "0" * 16, f"{number:064x}").path

    for address in range(20):
        for number in range(3):
            await storage.write(name(address, number), b"x")
    await storage.write("v1/winners/k/notes.txt", b"x")
    service = TeamStorage(lambda _: storage)
    for wanted in ([3, 5, 99], [*range(18)]):
        call = FindWinners(url, "v1/winners/k/", tuple(f"{address:032x}" for address in wanted), 2)
        found = await service.carry_out(call, never)
        assert isinstance(found, Listing)
        addresses = Counter(parts.address for one in found.entries if (parts := ObjectName.parse(one.name)) is not None)
        assert addresses == {f"{address:032x}": 2 for address in wanted if address < 20}


@pytest.mark.parametrize("store", ["redis"], indirect=True)
async def test_a_rewrite_makes_an_object_new(url: str, storage: Storage) -> None:
    """Its age is that of the last write, by the server's clock."""
    import redis

    with redis.Redis.from_url(url) as client:
        client.zadd("ktuned:names", {"v1/winners/k/a 5 1": 0, "v1/winners/k/ab 5 1": 0})
        await storage.write("v1/winners/k/a", b"whole")
        seconds, _ = client.time()
    ages = {entry.name: seconds - entry.modified for entry in await storage.list_entries("v1/")}
    assert 0 <= ages["v1/winners/k/a"] < PATIENCE_S
    assert ages["v1/winners/k/ab"] == seconds - 1


async def test_a_file_system_that_hangs_takes_few_threads(tmp_path: Path) -> None:
    """Each look leaves one behind, up to a limit; when it answers, it is used again."""
    storage = DirectoryStorage(str(tmp_path), deadline_s=0.01)
    answers = threading.Event()
    try:
        with anyio.fail_after(PATIENCE_S):
            while storage._count_hanging() < MAX_HANGING:
                with pytest.raises(StorageError, match="no answer within"):
                    await storage._run_in_thread("listing it", answers.wait)
        with pytest.raises(StorageError, match="the file system does not answer"):
            await storage.list_entries("v1/")
    finally:
        answers.set()
    with anyio.fail_after(PATIENCE_S):
        while storage._count_hanging():  # noqa: ASYNC110 - nothing reports the end of a thread
            await anyio.sleep(0.001)
    storage = DirectoryStorage(str(tmp_path))
    assert await storage.list_entries("v1/") == []


@pytest.mark.parametrize(
    "url",
    [
        "rediss://user:{}@host:6379/0", "redis://:{}@host/0", "redis://host/0?password={}&db=1",
        "unix:///run/redis.sock?password={}", "redis://user:pa/{}@host/0", "redis://user:pa#{}@host/0",
        "redis://user:pa[{}@host/0", "user:{}@host:6379", "s3://key:{}@bucket/x", "az://container/x?sas={}",
        "redis:/user:{}@host",
    ],
)  # fmt: skip
@pytest.mark.parametrize("password", ["hush", "hush@hush", "%68ush", "hush hush"])
def test_passwords_are_never_shown(url: str, password: str) -> None:
    """Neither a URL's, however it is written, nor one that a library repeats in its message."""
    url = url.format(password)
    message = make_storage_error(
        ValueError(f"cannot connect to {url} with {password}, {unquote(password)}"), "listing it", url
    )
    for words in (hide_secrets(url), message.message, ShareSettings(url).find_fault()):
        assert "hush" not in words
        assert "user" not in words
    with suppress(StorageError, ValueError):
        open_storage(url)


def test_urls_without_secrets_are_shown_as_they_are() -> None:
    """A bucket, a directory and a database are no secrets."""
    for url in ("s3://bucket/x", "/srv/a?b@c", "~/x", "file:///srv/x", "redis://host:6379/0", "unix:///run/x?db=1"):
        assert (hide_secrets(url), ShareSettings(url).find_fault()) == (url, "")


@pytest.mark.parametrize("wrong", ["ftp://host/x", "s3://", "redis://host:port/0"])
def test_an_invalid_url_is_refused(wrong: str) -> None:
    """In one line, with what to give."""
    with pytest.raises(StorageError):
        open_storage(wrong)
