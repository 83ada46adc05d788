"""The account of autotuned functions: what each process notes at once, and all of them together."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ktuned.dropin import RECORDED, TUNED, Account


def in_child(work: Callable[[], None], ending: Callable[[], None] = lambda: os._exit(0)) -> None:
    """Do something in a process that ends without its exit handlers."""
    child = os.fork()
    if child == 0:
        work()
        ending()
    os.waitpid(child, 0)


def noted(directory: Path, **keys: str) -> None:
    """Write what one process would: its file is named by its pid."""
    account = Account(directory=directory)
    account.record_adopted("p.f")
    for name, state in keys.items():
        account.record_key(f"p.{name} {{}}", state)
    account.record_left_alone("p.h", "a reason")
    account.record_note("p.f has a do_bench of its own")


def test_the_accounts_of_several_processes_are_merged(tmp_path: Path) -> None:
    """A key that one of them saw tuned is tuned, whichever comes first."""
    for order in ([RECORDED, TUNED], [TUNED, RECORDED]):
        noted(tmp_path, f=order[0], g=RECORDED, i="not tuned: another reason")
        in_child(lambda state=order[1]: noted(tmp_path, f=state))  # type: ignore[misc]
        assert len(list(tmp_path.iterdir())) == 2
        found = Account.from_directory(tmp_path)
        assert found.adopted == {"p.f"}
        assert found.keys == {"p.f {}": TUNED, "p.g {}": RECORDED, "p.i {}": "not tuned: another reason"}
        assert found.left_alone == {"p.h": "a reason"}
        assert list(found.notes) == ["p.f has a do_bench of its own"]
        for path in tmp_path.iterdir():
            path.unlink()


def test_entries_outlive_a_killed_process(tmp_path: Path) -> None:
    """By a signal that cannot be caught, right after."""
    in_child(lambda: noted(tmp_path, f=TUNED), lambda: os.kill(os.getpid(), signal.SIGKILL))
    assert Account.from_directory(tmp_path).keys == {"p.f {}": TUNED}


def test_an_entry_is_written_once(tmp_path: Path) -> None:
    """A state that changes is."""
    for _ in range(2):
        account = Account(directory=tmp_path)
        for _ in range(3):
            account.record_adopted("p.f")
            account.record_left_alone("p.g", "a reason")
            account.record_key("p.f {}", RECORDED)
            account.record_note("a note")
        account.record_key("p.f {}", TUNED)
        (path,) = tmp_path.iterdir()
        assert len(path.read_text().splitlines()) == 5
        path.unlink()


def test_a_forked_child_has_a_file_of_its_own(tmp_path: Path) -> None:
    """What its parent has noted before is the parent's."""
    account = Account(directory=tmp_path)
    account.record_adopted("p.f")

    def work() -> None:
        account.record_adopted("p.f")
        account.record_adopted("p.g")

    in_child(work)
    assert sorted(len(path.read_text().splitlines()) for path in tmp_path.iterdir()) == [1, 1]
    assert Account.from_directory(tmp_path).adopted == {"p.f", "p.g"}


def test_an_incomplete_line_is_skipped(tmp_path: Path) -> None:
    """At every byte: the process that wrote it was killed."""
    account = Account(directory=tmp_path)
    account.record_adopted("p.first")
    account.record_left_alone("p.zweite Größe", "a reason")
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    first = content.index(b"\n") + 1
    for length in range(first, len(content) - 1):
        path.write_bytes(content[:length])
        found = Account.from_directory(tmp_path)
        assert (found.adopted, found.left_alone) == ({"p.first"}, {})


def test_threads_may_write_at_the_same_time(tmp_path: Path) -> None:
    """Each line is whole."""
    account = Account(directory=tmp_path)

    def work(number: int) -> None:
        for one in range(50):
            account.record_adopted(f"p.{number}.{one}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(Account.from_directory(tmp_path).adopted) == 400


def test_without_a_directory_nothing_is_written(tmp_path: Path) -> None:
    """Nor where it is gone, as when the command was killed."""
    Account().record_adopted("p.f")
    Account(directory=tmp_path / "gone").record_adopted("p.f")
    assert list(tmp_path.iterdir()) == []


@given(st.lists(st.tuples(st.text(max_size=5), st.sampled_from([TUNED, RECORDED, "not tuned: x"])), max_size=10))
def test_an_account_is_read_as_it_was_written(notes: list[tuple[str, str]]) -> None:
    """Whatever characters a name has."""
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        account = Account(directory=Path(directory))
        for key, state in notes:
            account.record_key(key, state)
        found = Account.from_directory(Path(directory)).keys
    tuned = {key for key, state in notes if state == TUNED}
    assert found == {key: TUNED if key in tuned else state for key, state in account.keys.items()}
