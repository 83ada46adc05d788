"""The table's writer: what survives a restart, and what becomes of a daemon without a file."""

import os
from pathlib import Path

import pytest

from ktuned.lookup.generations import TABLE_NAME, Generations
from ktuned_client.generations import EPOCH_WORD, FIRST_SLOT, WORDS, Table, slot_of


def test_a_bump_is_seen_through_the_file(tmp_path: Path) -> None:
    """A reader's words are the writer's: one slot by a bump, every slot and no header word by a bump of all."""
    writer = Generations(str(tmp_path), epoch=7)
    assert writer.path == str(tmp_path / TABLE_NAME)
    reader = Table(writer.path)
    before = reader.words.tolist()
    assert before[EPOCH_WORD] == 7
    writer.bump("p:k")
    changed = [word for word in range(WORDS) if reader.words[word] != before[word]]
    assert changed == [slot_of("p:k")]
    assert writer.of("p:k") == reader.words[slot_of("p:k")] == before[slot_of("p:k")] + 1
    writer.bump_all()
    assert [reader.words[word] - before[word] for word in range(WORDS)] == [
        0 if word < FIRST_SLOT else 1 + (word == slot_of("p:k")) for word in range(WORDS)
    ]
    reader.close()
    writer.close()


def test_the_next_daemon_goes_on_with_the_same_file(tmp_path: Path) -> None:
    """Clients that have it mapped see the new epoch, and no generation that there has been before."""
    first = Generations(str(tmp_path), epoch=7)
    assert first.path is not None
    reader = Table(first.path)
    before = reader.words.tolist()
    first.close()
    second = Generations(str(tmp_path), epoch=8)
    assert reader.words[EPOCH_WORD] == 8
    assert all(reader.words[slot] == before[slot] + 1 for slot in range(FIRST_SLOT, WORDS))
    assert (tmp_path / TABLE_NAME).stat().st_mode & 0o777 == 0o600
    reader.close()
    second.close()


def test_two_tables_have_no_generation_in_common(tmp_path: Path) -> None:
    """Anyone who maps another file takes nothing in it for what the first one said."""
    tables = []
    for number in range(2):
        (tmp_path / TABLE_NAME).unlink(missing_ok=True)
        writer = Generations(str(tmp_path), epoch=number)
        tables.append(writer.of("p:k"))
        writer.close()
    assert abs(tables[0] - tables[1]) > 1_000_000


def test_a_full_disk_costs_the_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without room there is no table to report, generations count nevertheless, and nothing half made stays."""

    def full(*_: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "posix_fallocate", full)
    writer = Generations(str(tmp_path), epoch=7)
    before = writer.of("p:k")
    writer.bump("p:k")
    assert (writer.path, writer.of("p:k")) == (None, before + 1)
    assert list(tmp_path.iterdir()) == []
    writer.close()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """A link in the table's place is neither written through nor believed."""
    (tmp_path / "elsewhere").write_bytes(bytes(8 * WORDS))
    (tmp_path / TABLE_NAME).symlink_to("elsewhere")
    writer = Generations(str(tmp_path), epoch=7)
    assert (tmp_path / "elsewhere").read_bytes() == bytes(8 * WORDS)
    with pytest.raises(OSError, match=TABLE_NAME):
        Table(str(tmp_path / TABLE_NAME))
    writer.close()


def test_a_generation_never_leaves_its_64_bits(tmp_path: Path) -> None:
    """After the last one comes the first."""
    writer = Generations(str(tmp_path), epoch=7)
    writer._words[slot_of("p:k")] = 2**64 - 1
    writer.bump("p:k")
    assert writer.of("p:k") == 0
    writer.close()
