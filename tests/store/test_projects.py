"""The names of projects."""

from __future__ import annotations

import pytest

from ktuned.protocol.kernels import Root
from ktuned.store.database import Store

pytestmark = pytest.mark.anyio


async def name_roots(store: Store, **names: str) -> None:
    """Name the roots."""
    await store.projects.save_names({f"/{path}": name for path, name in names.items()})


async def test_names_change_in_one_step(store: Store) -> None:
    """A project may take a name that another gives up, and two may swap names."""
    await name_roots(store, a="one", b="two")
    await name_roots(store, a="two", b="three")
    assert store.projects.load_names() == {"/a": "two", "/b": "three"}
    await name_roots(store, a="three", b="two")
    assert store.projects.load_names() == {"/a": "three", "/b": "two"}


async def test_a_removed_root_s_name_is_free(store: Store) -> None:
    await name_roots(store, a="one")
    await name_roots(store, b="one")
    assert store.projects.load_names() == {"/b": "one"}


async def test_a_watched_root_keeps_its_new_name_after_a_restart(store: Store) -> None:
    await store.add_root(Root("/p", "proj", "python"))
    await name_roots(store, p="proj")
    await name_roots(store, p="other")
    assert [root.name for root in store.load_roots()] == ["other"]
