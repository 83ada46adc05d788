from __future__ import annotations

from pathlib import Path

import pytest

from ktuned.model.keys import WinnerKey
from ktuned.store.database import Store
from tests.daemon_parts import make_winner_key

pytestmark = pytest.mark.anyio


def make_key(number: int) -> WinnerKey:
    return make_winner_key({"n": number})


async def test_launch_counts_add_up_and_the_oldest_keys_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that is launched again is new; counts survive a restart."""
    monkeypatch.setattr("ktuned.store.database.MAX_LAUNCHED_KEYS", 2)
    async with Store.open(tmp_path / "k.sqlite") as store:
        await store.add_launches({make_key(1): 5, make_key(2): 7}, now=1.0)
        await store.add_launches({make_key(1): 3}, now=2.0)
        assert store.load_launches() == {make_key(1): 8, make_key(2): 7}
        await store.add_launches({make_key(3): 1}, now=3.0)
    async with Store.open(tmp_path / "k.sqlite") as store:
        assert list(store.load_launches().items()) == [(make_key(1), 8), (make_key(3), 1)]
