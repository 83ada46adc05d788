"""Libraries that keep winners in a store of their own: it gets measured winners and nothing else, whatever happens."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from triton.runtime.autotuner import Autotuner

from ktuned.cli.commands.run import summarise_account
from ktuned.dropin import ANSWERED, Answer, account
from ktuned_triton import autotuner, keyed_call
from tests.fake_daemon_link import FakeDaemonLink
from tests.plugins.library_tuners import KINDS, OwnRun, PolicyTuner, StoreInRun
from tests.plugins.triton_app import kernels
from tests.plugins.triton_calls import (
    SIZE,
    Launches,
    call,
    clean_account,
    launched,
    left_to_triton,
    link,
    records,
    spool,
    text,
)

__all__ = ["clean_account", "launched", "left_to_triton", "link", "spool"]

LATENCY_US = 12.5

WINNER = Answer(text(256, 4), is_final=True, latency_us=LATENCY_US)

KILLED = 9


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a kind of subclass, in a process that runs under ``ktuned run``."""
    adopt_process(monkeypatch)
    return request.param


def adopt_process(monkeypatch: pytest.MonkeyPatch, numerics: str = "tolerance") -> None:
    """Make this process one under ``ktuned run``, in which nothing is compiled."""
    monkeypatch.setattr(autotuner, "_process_policy", None)
    monkeypatch.setattr(keyed_call, "compile_recorded_call", lambda *args: None)
    autotuner.adopt_process(Autotuner, "background", numerics)


def list_blocks(launched: Launches) -> list[int]:
    """Return the block size of each launch."""
    return [run["BLOCK"] for run in launched]


def read_blocks(store: Path) -> set[int]:
    """Return the block sizes that a library has stored."""
    return {arguments["BLOCK"] for arguments, _ in json.loads(store.read_text()).values()} if store.exists() else set()


def read_figures(store: Path) -> set[float]:
    """Return the latencies, in milliseconds, that a library has stored."""
    return {figure for _, figure in json.loads(store.read_text()).values() if figure is not None}


def live(kind: type[Any], store: Path, link: FakeDaemonLink) -> None:
    """Live a process's life: two calls without a winner, and one after the winner has come."""
    function = kind(store)
    call(function)
    call(function)
    for _, on_answer in link.followed_keys:
        on_answer(WINNER)
    call(function)
    call(function)


def test_the_store_gets_the_winner_when_it_is_known(
    kind: type[Any], link: FakeDaemonLink, launched: Launches, spool: Path, tmp_path: Path
) -> None:
    """And its measured latency; the calls before launch the first config and leave the store alone."""
    store = tmp_path / "store"
    function = kind(store)
    call(function)
    call(function)
    assert (read_blocks(store), len(records(spool)), function.nargs) == (set(), 1, None)
    ((_, on_answer),) = link.followed_keys
    assert on_answer(WINNER) is False
    assert read_blocks(store) == set()
    call(function)
    call(function)
    assert list_blocks(launched) == [64, 64, 256, 256]
    assert read_blocks(store) == {256}
    assert read_figures(store) <= {LATENCY_US / 1000}


def test_a_second_start_stores_what_the_daemon_knows(
    kind: type[Any], link: FakeDaemonLink, launched: Launches, spool: Path, tmp_path: Path
) -> None:
    """In its first call. The third start is answered by the library, and the summary says so."""
    link.answer = WINNER
    call(kind(tmp_path / "store"))
    assert read_blocks(tmp_path / "store") == {256}
    account.keys.clear()
    link.asked_keys.clear()
    call(kind(tmp_path / "store"))
    assert list_blocks(launched) == [256, 256]
    assert (link.asked_keys, list(account.keys.values())) == ([], [ANSWERED])
    assert f"1 tuning key: 0 tuned, 0 recorded now, 1 {ANSWERED}" in summarise_account(account)


def test_without_ktuned_the_library_starts_with_the_winner(
    kind: type[Any],
    link: FakeDaemonLink,
    launched: Launches,
    left_to_triton: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It measures nothing."""
    live(kind, tmp_path / "store", link)
    monkeypatch.setattr(autotuner, "_process_policy", None)
    launched.clear()
    call(kind(tmp_path / "store"))
    assert list_blocks(launched) == [256]
    assert left_to_triton == []


def test_a_process_that_dies_at_any_moment_leaves_no_other_config(
    kind: type[Any], link: FakeDaemonLink, launched: Launches, tmp_path: Path
) -> None:
    """At each function call of the library, the drop-in and Triton; the next start still stores the winner."""
    store = tmp_path / "store"
    seen, moment = set(), 0
    while run_until_call(moment, kind, store, link) == KILLED:
        assert read_blocks(store) <= {256}
        seen.add(frozenset(read_blocks(store)))
        if read_blocks(store):
            store.unlink()
        moment += 1 + moment // 12
    assert seen >= {frozenset()}
    assert moment > 30
    store.unlink(missing_ok=True)
    link.answer = WINNER
    call(kind(store))
    assert read_blocks(store) == {256}


def run_until_call(moment: int, kind: type[Any], store: Path, link: FakeDaemonLink) -> int:
    """Live a life in a forked child that is killed at a function call; return the child's status."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        if event == "call" and ("triton" in frame.f_code.co_filename or "library_tuners" in frame.f_code.co_filename):
            calls += 1
            if calls > moment:
                os._exit(KILLED)

    sys.setprofile(count)
    try:
        live(kind, store, link)
    finally:
        os._exit(0)


def test_sizes_that_the_library_rounds_are_one_key(
    link: FakeDaemonLink,
    launched: Launches,
    spool: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each size would be tuned otherwise."""
    adopt_process(monkeypatch)
    function = PolicyTuner(tmp_path / "store")
    for size in (SIZE, SIZE - 1, SIZE // 2):
        call(function, size)
    assert (len(link.asked_keys), len(records(spool))) == (2, 2)


def test_a_run_that_changes_arguments_is_called_each_time(
    link: FakeDaemonLink, launched: Launches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The arguments that it has made are launched."""
    adopt_process(monkeypatch)

    class Doubling(StoreInRun):
        """Doubles the size."""

        def run(self, *args: Any, **kwargs: Any) -> Any:
            x, y, size, factor = args
            return super().run(x, y, 2 * size, factor, **kwargs)

    seen: list[int] = []
    function = Doubling(tmp_path / "store")
    monkeypatch.setattr(function.fn, "run", lambda *args, **kwargs: None if kwargs["warmup"] else seen.append(args[2]))
    call(function, 8)
    call(function, 8)
    assert seen == [16, 16]
    assert len(link.asked_keys) == 1


class TestExactNumerics:
    """No config runs but the first, or one with its bits."""

    def test_a_poisoned_store_is_not_read(
        self,
        kind: type[Any],
        link: FakeDaemonLink,
        launched: Launches,
        left_to_triton: list[Any],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Nor is it written; with a daemon, with a dying one, and without one."""
        monkeypatch.setattr(autotuner, "_process_policy", None)
        poisoner = kind(tmp_path / "store")
        poisoner.configs = [kernels.CONFIGS[2], kernels.CONFIGS[2]]
        call(poisoner)
        poisoned = (tmp_path / "store").read_text()
        assert read_blocks(tmp_path / "store") == {128}
        left_to_triton.clear()
        launched.clear()
        adopt_process(monkeypatch, "exact")
        for known in (Answer(), None, Answer(message="it hung")):
            link.answer = known
            function = kind(tmp_path / "store")
            for _ in range(3):
                call(function)
            for _, on_answer in link.followed_keys:
                on_answer(Answer(message="the daemon ends"))
        assert {*list_blocks(launched)} == {64}
        assert ((tmp_path / "store").read_text(), left_to_triton) == (poisoned, [])

    def test_ten_thousand_steps_have_one_config(
        self,
        link: FakeDaemonLink,
        launched: Launches,
        left_to_triton: list[Any],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Also those of calls that are left alone, and of functions that another process cannot find."""
        import torch

        adopt_process(monkeypatch, "exact")
        functions = [OwnRun(tmp_path / "store"), PolicyTuner(tmp_path / "other")]
        x, pointers = torch.ones(SIZE), torch.tensor([torch.ones(1).data_ptr() | 1 << 45] * SIZE)
        for step in range(5_000):
            link.answer = (Answer(), None)[step % 2]
            for function in functions:
                function.run(pointers if step % 7 == 0 else x, x, step % 97 + 1, 2.0, grid=(1,), warmup=False)
        assert {*list_blocks(launched)} == {64}
        assert (len(launched), left_to_triton) == (10_000, [])
        assert "its argument x is a table of pointers" in account.left_alone.values()

    def test_a_run_that_cannot_be_hooked_is_refused(
        self, link: FakeDaemonLink, launched: Launches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """By one line, before the first launch."""
        adopt_process(monkeypatch, "exact")

        class Own(StoreInRun):
            """Chooses in a way of its own."""

            def run(self, *args: Any, **kwargs: Any) -> Any:
                return self.fn.run(*args, **kwargs, **self.configs[-1].all_kwargs())

        with pytest.raises(
            RuntimeError, match=r"scale cannot have exact numerics: .*Own has a run of its own"
        ) as error:
            call(Own(tmp_path / "store"))
        assert "\n" not in str(error.value)
        assert launched == []
