"""The table's writer and reader: what is published is found whole, what ended is not, and what survives a restart."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ktuned.lookup.winner_table import FIRST_ENTRIES, WinnerTable
from ktuned_client.table import (
    ENTRIES_WORD,
    ENTRY_WORDS,
    EPOCH_WORD,
    FIRST_SLOT,
    MAX_CONTENT_BYTES,
    TABLE_NAME,
    USES_NAME,
    WORDS,
    Table,
    find_slot,
)


@pytest.fixture
def trusted_directory(tmp_path: Path) -> Path:
    """Return a directory that is trusted."""
    (tmp_path / "run").mkdir(mode=0o700)
    return tmp_path / "run"


@pytest.fixture
def writer(trusted_directory: Path) -> Iterator[WinnerTable]:
    """Return a table's writer."""
    table = WinnerTable(str(trusted_directory), epoch=7)
    yield table
    table.close()


def find_payload(table: Table, key: bytes) -> bytes | None:
    """Return what a reader finds under a key, if it is up to date."""
    entry = table.find(key)
    return None if entry is None or table.words[entry[0]] != entry[1] else entry[2]


def test_a_bump_ends_one_kernels_entries(trusted_directory: Path, writer: WinnerTable) -> None:
    """An entry is found under the generation at which it was published, until that kernel, or all, are bumped."""
    reader = Table(str(trusted_directory / TABLE_NAME))
    assert reader.words[EPOCH_WORD] == 7
    for kernel in ("p:one", "p:two"):
        assert reader.find(kernel.encode()) is None
        assert writer.publish_entry(kernel, kernel.encode(), b"first")
        assert reader.find(kernel.encode()) == (find_slot(kernel), writer.generation(kernel), b"first")
    before = reader.words.tolist()[:WORDS]
    writer.bump_generation("p:one")
    assert [word for word in range(WORDS) if reader.words[word] != before[word]] == [find_slot("p:one")]
    assert (find_payload(reader, b"p:one"), find_payload(reader, b"p:two")) == (None, b"first")
    writer.publish_entry("p:one", b"p:one", b"another, and a longer one")
    assert find_payload(reader, b"p:one") == b"another, and a longer one"
    writer.bump_all_generations()
    assert (find_payload(reader, b"p:one"), find_payload(reader, b"p:two")) == (None, None)
    reader.close()


def test_an_ended_entry_is_a_last_resort_until_it_is_revoked(trusted_directory: Path, writer: WinnerTable) -> None:
    """A reader finds an entry of an earlier generation, and one that asks first, but none of another era."""
    reader = Table(str(trusted_directory / TABLE_NAME))
    slot = find_slot("p:k")
    writer.publish_entry("p:k", b"key", b"payload")
    published = writer.generation("p:k")
    writer.bump_all_generations()
    assert reader.find(b"key") == (slot, published, b"payload")
    writer.publish_entry("p:k", b"key", b"payload", asks_first=True)
    for _ in range(3):
        entry = reader.find(b"key")
        assert entry is not None
        assert entry[1] < writer.generation("p:k")
        writer.bump_generation("p:k")
    writer.revoke_entries("p:k")
    assert reader.find(b"key") is None
    writer.publish_entry("p:k", b"key", b"payload", asks_first=True)
    assert reader.find(b"key") == (slot, writer.generation("p:k") - 1, b"payload")
    reader.close()


def test_what_is_published_already_is_known(writer: WinnerTable) -> None:
    """The same payload under the same generation is not written again; another one, or an ended one, is."""
    assert not writer.holds_entry("p:k", b"key", b"payload")
    writer.publish_entry("p:k", b"key", b"payload")
    assert writer.holds_entry("p:k", b"key", b"payload")
    assert not writer.holds_entry("p:k", b"key", b"payloaD")
    writer.bump_generation("p:k")
    assert not writer.holds_entry("p:k", b"key", b"payload")


def test_a_half_written_entry_is_none(trusted_directory: Path, writer: WinnerTable) -> None:
    """A sequence that is odd, as a killed daemon leaves it, and a byte that is another one each make it absent."""
    writer.publish_entry("p:k", b"key", b"payload")
    reader = Table(str(trusted_directory / TABLE_NAME))
    (at,) = [word for word in range(WORDS, len(reader.words), ENTRY_WORDS) if reader.words[word]]
    for word, other in ((at, 1), (at + 1, 1), (at + 3, 1), (at + 4, 1 << 40)):
        writer._words[word] ^= other
        assert reader.find(b"key") is None
        writer._words[word] ^= other
        assert find_payload(reader, b"key") == b"payload"
    for lengths in (2**64 - 1, 0, find_slot("p:k") << 32 | 0xFFFF0000):
        whole, writer._words[at + 2] = writer._words[at + 2], lengths
        assert reader.find(b"key") is None
        writer._words[at + 2] = whole
    reader.close()


def test_a_larger_file_takes_the_place_of_a_full_one(trusted_directory: Path, writer: WinnerTable) -> None:
    """Readers are sent to it; all entries and generations are there, and nothing holds in the old one."""
    before = Table(str(trusted_directory / TABLE_NAME))
    keys = [f"key {number}".encode() for number in range(3000)]
    for key in keys:
        assert writer.publish_entry("p:k", key, key * 2)
    assert before.is_replaced
    assert all(before.find(key) is None for key in keys)
    reader = Table(str(trusted_directory / TABLE_NAME))
    assert not reader.is_replaced
    assert reader.words[ENTRIES_WORD] >= 4096
    assert reader.words[find_slot("p:k")] == writer.generation("p:k")
    assert [find_payload(reader, key) for key in keys] == [key * 2 for key in keys]
    assert sorted(path.name for path in trusted_directory.iterdir()) == sorted([TABLE_NAME, USES_NAME])
    before.close()
    reader.close()


def test_the_table_is_bounded(trusted_directory: Path) -> None:
    """Beyond the largest number of entries, later ones take the place of others, and what is found is right."""
    writer = WinnerTable(str(trusted_directory), epoch=7, max_entries=2 * FIRST_ENTRIES)
    keys = [f"key {number}".encode() for number in range(2000)]
    for key in keys:
        assert writer.publish_entry("p:k", key, key)
    reader = Table(str(trusted_directory / TABLE_NAME))
    assert reader.words[ENTRIES_WORD] == 2 * FIRST_ENTRIES
    payloads = [(key, find_payload(reader, key)) for key in keys]
    assert all(payload in (None, key) for key, payload in payloads)
    assert sum(payload is not None for _, payload in payloads) > FIRST_ENTRIES
    assert payloads[-1][1] == keys[-1]
    assert not writer.publish_entry("p:k", b"key", bytes(MAX_CONTENT_BYTES - 2))
    assert writer.publish_entry("p:k", b"key", bytes(MAX_CONTENT_BYTES - 3))
    reader.close()
    writer.close()


def test_the_least_recently_used_leave_a_full_table(trusted_directory: Path) -> None:
    """Kernels that are looked up keep their entries; one that nobody uses takes no place of theirs."""
    writer = WinnerTable(str(trusted_directory), epoch=7, max_entries=FIRST_ENTRIES)
    used = [f"used {number}".encode() for number in range(FIRST_ENTRIES // 2)]
    writer.note_use("p:used")
    unused = [f"unused {number}".encode() for number in range(4 * FIRST_ENTRIES)]
    for key in unused:
        writer.publish_entry("p:unused", key, key)
    assert all(writer.publish_entry("p:used", key, key) for key in used)
    writer.bump_generation("p:unused")
    for key in unused:
        writer.publish_entry("p:unused", key, key)
    reader = Table(str(trusted_directory / TABLE_NAME))
    assert [find_payload(reader, key) for key in used] == used
    assert writer.sort_by_use(["p:unused", "p:used", "p:never"])[0] == "p:used"
    reader.close()
    writer.close()


def test_the_next_daemon_begins_with_a_table_of_its_own(trusted_directory: Path) -> None:
    """Readers of the last one find nothing there but the way to the new one, which has no generation of before."""
    first = WinnerTable(str(trusted_directory), epoch=7)
    first.publish_entry("p:k", b"key", b"payload")
    reader = Table(str(trusted_directory / TABLE_NAME))
    generations = reader.words.tolist()[FIRST_SLOT:WORDS]
    first.close()
    assert find_payload(reader, b"key") == b"payload"
    (trusted_directory / f"{TABLE_NAME}.123").write_bytes(b"of a daemon that was killed")
    second = WinnerTable(str(trusted_directory), epoch=8)
    assert reader.is_replaced
    assert reader.find(b"key") is None
    after = Table(str(trusted_directory / TABLE_NAME))
    assert after.words[EPOCH_WORD] == 8
    assert after.find(b"key") is None
    assert after.words.tolist()[FIRST_SLOT:WORDS] == [word + 1 for word in generations]
    assert not set(reader.words.tolist()[FIRST_SLOT:WORDS]) & set(generations)
    assert {path.name for path in trusted_directory.iterdir()} == {TABLE_NAME, USES_NAME}
    for table in (reader, after, second):
        table.close()


def test_two_tables_have_no_generation_in_common(trusted_directory: Path) -> None:
    """Anyone who maps another file takes nothing in it for what the first one said."""
    tables = []
    for number in range(2):
        (trusted_directory / TABLE_NAME).unlink(missing_ok=True)
        writer = WinnerTable(str(trusted_directory), epoch=number)
        tables.append(writer.generation("p:k"))
        writer.close()
    assert abs(tables[0] - tables[1]) > 1_000_000


def test_other_users_cannot_read_it(trusted_directory: Path, writer: WinnerTable) -> None:
    """Both files are their owner's alone, so that another user is refused; and a reader believes no other's."""
    assert writer.path is not None
    assert {path.stat().st_mode & 0o777 for path in trusted_directory.iterdir()} == {0o600}
    if os.geteuid():
        pytest.skip("only root can become another user")
    trusted_directory.chmod(0o711)
    child = os.fork()
    if not child:
        os.seteuid(65534)
        try:
            os.open(writer.path, os.O_RDONLY)
        except PermissionError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with pytest.raises(OSError, match="open to others"):
        Table(writer.path)
    trusted_directory.chmod(0o700)
    os.chown(writer.path, 65534, -1)
    with pytest.raises(ValueError, match="of this user"):
        Table(writer.path)


def test_a_full_disk_costs_the_file_and_nothing_else(trusted_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without room there is no table, generations count nevertheless, and nothing half made stays."""

    def full(*_: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "posix_fallocate", full)
    writer = WinnerTable(str(trusted_directory), epoch=7)
    before = writer.generation("p:k")
    writer.bump_generation("p:k")
    assert (writer.path, writer.generation("p:k")) == (None, before + 1)
    assert not writer.publish_entry("p:k", b"key", b"payload")
    assert not writer.holds_entry("p:k", b"key", b"payload")
    assert {path.name for path in trusted_directory.iterdir()} <= {USES_NAME}
    writer.close()


def test_a_disk_that_is_full_later_keeps_the_file(
    trusted_directory: Path, writer: WinnerTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot grow goes on as it is."""

    def full(*_: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "posix_fallocate", full)
    keys = [f"key {number}".encode() for number in range(1000)]
    assert all(writer.publish_entry("p:k", key, key) for key in keys)
    reader = Table(str(trusted_directory / TABLE_NAME))
    assert reader.words[ENTRIES_WORD] == FIRST_ENTRIES
    assert all(find_payload(reader, key) in (None, key) for key in keys)
    assert {path.name for path in trusted_directory.iterdir()} == {TABLE_NAME, USES_NAME}
    reader.close()


def test_a_link_is_not_followed(trusted_directory: Path) -> None:
    """A link in the table's place is neither written through nor believed."""
    (trusted_directory / "elsewhere").write_bytes(bytes(8 * WORDS))
    (trusted_directory / TABLE_NAME).symlink_to("elsewhere")
    with pytest.raises(OSError, match=TABLE_NAME):
        Table(str(trusted_directory / TABLE_NAME))
    writer = WinnerTable(str(trusted_directory), epoch=7)
    assert (trusted_directory / "elsewhere").read_bytes() == bytes(8 * WORDS)
    assert not (trusted_directory / TABLE_NAME).is_symlink()
    writer.close()


def test_a_generation_never_leaves_its_64_bits(writer: WinnerTable) -> None:
    """After the last one comes the first."""
    writer._words[find_slot("p:k")] = 2**64 - 1
    writer.bump_generation("p:k")
    assert writer.generation("p:k") == 0


def test_uses_are_what_clients_noted_lately(trusted_directory: Path, writer: WinnerTable) -> None:
    """A use counts from the time at which it was noted; what no client can have noted is none."""
    uses = trusted_directory / USES_NAME
    watched = writer._words[3]
    for kernel, noted in (("p:now", watched), ("p:before", watched - 20 * 10**9), ("p:never", watched + 1)):
        with uses.open("r+b") as stream:
            stream.seek(8 * find_slot(kernel))
            stream.write(noted.to_bytes(8, "little"))
    now = watched / 1e9 - 10.0
    kernels = ["p:now", "p:before", "p:never", "p:other"]
    assert writer.list_used_kernels(kernels, now - 5.0) == ["p:now"]
    assert writer.list_used_kernels(kernels, now - 60.0) == ["p:now", "p:before"]
